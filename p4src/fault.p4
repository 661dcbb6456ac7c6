// Fault injection for tests. The table is empty in production.
//
// A rule counts the RoCE packets that match it and acts on `count` of them from
// number `first` on (the first packet is number 0). A rule that is installed
// again under another epoch counts anew.

const bit<32> FAULT_RULES = 256;

control Fault(inout headers hdr, inout metadata meta, inout standard_metadata_t std,
              in bit<9> port, out bool drop) {
    register<bit<64>>(FAULT_RULES) seen; // epoch, number of packets

    action fault(bit<32> slot, bit<32> epoch, bit<32> first, bit<32> count, FaultKind kind) {
        meta.fault.slot  = slot;
        meta.fault.epoch = epoch;
        meta.fault.first = first;
        meta.fault.count = count;
        meta.fault.kind  = kind;
    }

    table rules {
        key = {
            port:            ternary @name("port");
            hdr.ipv4.src:    ternary @name("src");
            hdr.ipv4.dst:    ternary @name("dst");
            hdr.bth.dest_qp: ternary @name("dest_qp");
            hdr.bth.opcode:  ternary @name("opcode");
            hdr.bth.psn:     ternary @name("psn");
        }
        actions = { fault; @defaultonly NoAction; }
        const default_action = NoAction();
        size = FAULT_RULES;
    }

    apply {
        drop = false;
        if (rules.apply().hit) {
            bit<64> state;
            seen.read(state, meta.fault.slot);
            bit<32> number = 0;
            if (state[63:32] == meta.fault.epoch) {
                number = state[31:0];
            }
            seen.write(meta.fault.slot, meta.fault.epoch ++ (number + 1));
            if (number - meta.fault.first < meta.fault.count) {
                if (meta.fault.kind == FaultKind.DROP) {
                    drop = true;
                } else if (meta.fault.kind == FaultKind.CORRUPT) {
                    meta.corrupt = 1;
                } else if (meta.fault.kind == FaultKind.MARK) {
                    hdr.ipv4.ecn = 3;
                }
            }
        }
    }
}
