// ECN marking by the depth of the egress queue (DCQCN): never up to Kmin, always
// above Kmax, in between with a probability that grows linearly to Pmax.

control Ecn(inout headers hdr, inout standard_metadata_t std) {
    direct_counter(CounterType.packets) looked_at;

    // kmin, kmax: in the unit of deq_qdepth (packets on bmv2, cells of 64 bytes on the
    // embedded switch with --queue-unit 64), kmin <= kmax. pmax: in units of 1/65536.
    action red(bit<19> kmin, bit<19> kmax, bit<16> pmax) {
        bit<16> draw;
        random(draw, 0, 0xffff);
        bit<40> chance = (bit<40>)pmax * (bit<40>)(std.deq_qdepth - kmin);
        bit<40> hurdle = (bit<40>)draw * (bit<40>)(kmax - kmin);
        if (std.deq_qdepth > kmax) {
            hdr.ipv4.ecn = 3;
        } else if (std.deq_qdepth > kmin && hurdle < chance) {
            hdr.ipv4.ecn = 3;
        }
    }

    table ports {
        key = { std.egress_port: exact @name("port"); }
        actions = { red; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = looked_at;
        size = 512;
    }

    apply {
        if (hdr.ipv4.ecn == 1 || hdr.ipv4.ecn == 2) { // the sender understands ECN
            ports.apply();
        }
    }
}
