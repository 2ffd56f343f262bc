// Where elements lie in panels, and which lane of a group holds what, behind a C interface: tests/test_groups.py.
#define LM_NAMESPACE device_panels_test
#include "luminal/device/functions.hpp"

namespace {

template <int rows, int row> void places(int32_t* found) {
    for (int offset = 0; offset < rows * row; ++offset) found[offset] = lm::in_panels<2, rows, row>(offset);
}

template <class F> void held(int32_t* rows, int32_t* columns) {
    for (int lane = 0; lane < F::lanes; ++lane) {
        for (int e = 0; e < F::elements; ++e) {
            rows[lane * F::elements + e] = F::row(lane, e);
            columns[lane * F::elements + e] = F::column(lane, e);
        }
    }
}

}  // namespace

extern "C" void places_64_64(int32_t* found) { places<64, 64>(found); }
extern "C" void places_16_192(int32_t* found) { places<16, 192>(found); }
extern "C" void held_64(int32_t* rows, int32_t* columns) { held<lm::m64n64k16<lm::float16>>(rows, columns); }
extern "C" void held_128(int32_t* rows, int32_t* columns) { held<lm::m64n128k16<lm::bfloat16>>(rows, columns); }
extern "C" void held_256(int32_t* rows, int32_t* columns) { held<lm::m64n256k16<lm::bfloat16>>(rows, columns); }
