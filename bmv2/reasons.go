package bmv2

// DropReasons names the cells of the counters ingress.drops and egress.drops, as
// p4src/drops.p4 numbers them.
var DropReasons = []string{
	"malformed",
	"ip_checksum",
	"icrc",
	"ttl",
	"no_route",
	"no_next_hop",
	"no_neighbour",
	"unknown_mac",
	"opcode",
	"no_replica",
	"not_member",
	"syndrome",
	"absorbed",
	"stale_nak",
	"undecided_nak",
	"cnp_filter",
	"fault",
	"spoofed",
	"unreadable",
	"window",
	"bypass",
}
