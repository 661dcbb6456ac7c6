// Source guard, at ingress: what comes in at a guarded port must come from a host
// that is known to be there. So no host can send in another's name: not data into a
// group that isn't its own, nor acknowledgements of another member, and it cannot
// move another's address to itself by ARP, nor speak as a switch.

control Guard(inout headers hdr, inout standard_metadata_t std, out bool spoofed) {
    bit<32> claimed = 0;
    bit<48> claimed_mac = hdr.ethernet.src;

    table guarded_ports {
        key = { std.ingress_port: exact @name("port"); }
        actions = { NoAction; }
        const default_action = NoAction();
        size = 512;
    }

    // ARP must say the same as the frame that it comes in.
    action host(bit<48> mac) {
        spoofed = hdr.ethernet.src != mac || claimed_mac != mac;
    }

    action unknown() { spoofed = true; }

    table port_hosts {
        key = {
            std.ingress_port: exact @name("port");
            claimed:          exact @name("ip");
        }
        actions = { host; @defaultonly unknown; }
        const default_action = unknown();
        size = 16384;
    }

    apply {
        spoofed = false;
        if (hdr.ipv4.isValid()) {
            claimed = hdr.ipv4.src;
        } else if (hdr.arp.isValid()) {
            claimed = hdr.arp.spa;
            claimed_mac = hdr.arp.sha;
        }
        if (guarded_ports.apply().hit) {
            if (hdr.ethernet.type == ETHERTYPE_HELLO) {
                spoofed = true;
            } else if (hdr.ipv4.isValid() || hdr.arp.isValid()) {
                port_hosts.apply();
            }
        }
    }
}
