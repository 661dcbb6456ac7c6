// Source guard, at ingress: what comes in at a guarded port must come from a host
// that is known to be there. So no host can send in another's name: not data into a
// group that isn't its own, nor acknowledgements of another member, and it cannot
// move another's address to itself by ARP, nor speak as a switch.
//
// Only what the guard can read passes: IPv4 without options that is no fragment, and
// ARP for IPv4 over Ethernet. A receiver sees through more than this program does
// (Linux takes off a tag with VID 0, and puts fragments together), and an answer that
// hides in it would reach the sender unmerged. So tags, LLC, IPv6 and any other
// EtherType are dropped.

control Guard(inout headers hdr, inout standard_metadata_t std, out bit<32> drop) {
    const bit<32> PASS = 0xffffffff;
    bit<32> claimed = 0;
    bit<48> claimed_mac = hdr.ethernet.src;
    bool spoofed = false;

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
        drop = PASS;
        if (guarded_ports.apply().hit) {
            bool readable = false;
            if (hdr.ipv4.isValid()) {
                readable = hdr.ipv4.version_ihl == 0x45 && hdr.ipv4.frag & 0x3fff == 0;
                claimed = hdr.ipv4.src;
            } else if (hdr.arp.isValid()) {
                readable = hdr.arp.htype == 1 && hdr.arp.ptype == ETHERTYPE_IPV4 && hdr.arp.hlen == 6 &&
                           hdr.arp.plen == 4 && (hdr.arp.oper == 1 || hdr.arp.oper == 2);
                claimed = hdr.arp.spa;
                claimed_mac = hdr.arp.sha;
            }
            if (hdr.ethernet.type == ETHERTYPE_HELLO) {
                drop = DROP_SPOOFED;
            } else if (!readable) {
                drop = DROP_UNREADABLE;
            } else {
                port_hosts.apply();
                if (spoofed) {
                    drop = DROP_SPOOFED;
                }
            }
        }
    }
}
