#include "gpu/cpu/lanes_scalar.h"

#include "gpu/cpu/row_softmax_body.h"

namespace seer {

const RowSoftmaxKernels kScalarRowSoftmax = {.max = row_max, .exp_sums = exp_sums};

}  // namespace seer
