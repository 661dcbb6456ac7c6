// A header with a varbit field is extracted to a stack.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<8> a; bit<64> b; bit<128> w; }
header v_t { bit<8> n; varbit<64> d; }

struct headers_t { h_t h; h_t[2] s; v_t v; v_t[2] vs;  }
struct meta_t { bit<32> n; bit<128> w; int<64> z; }
parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start { p.extract(h.vs.next, 8); transition accept; }
}
control Verify(inout headers_t h, inout meta_t m) { apply { } }
control In(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    apply {
        m.n = 1;
    }
}
control Out(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply { } }
control Compute(inout headers_t h, inout meta_t m) { apply { } }
control Deparse(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
