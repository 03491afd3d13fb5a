#if defined(__x86_64__)
#include "gpu/cpu/lanes_avx2.h"

#include "gpu/cpu/row_softmax_body.h"

namespace seer {

const RowSoftmaxKernels kAvx2RowSoftmax = {.max = row_max, .exp_sums = exp_sums};

}  // namespace seer
#endif
