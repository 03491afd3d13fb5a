// ggml_steps: times steps of ggml's CPU backend, the kernels of llama.cpp, at the shape of Qwen2.5-0.5B with random weights: the
// graph that llama.cpp builds for this model, weights in the buffers that it chooses, KV in f16 with a stream per sequence, a pool of
// threads. bench_beside_ggml.py runs it in turn with bench_engine. Built where CMake finds ggml.
//
//   ggml_steps DTYPE CASE ROUNDS [THREADS]      DTYPE: bf16, q8_0 ...; CASE: decodeN (N sequences with 64 tokens each) or prefillN
//
// Prints a JSON line: tokens_per_s is the median over the rounds; attention is the faster of flash attention and products with a
// softmax, as measured first; buffers says in megabytes where the weights are.
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

constexpr int64_t kLayers = 24, kHidden = 896, kHeads = 14, kKvHeads = 2, kDim = 64, kInner = 4864, kVocab = 151936;
constexpr int64_t kKvWidth = kKvHeads * kDim, kContext = 64;

[[noreturn]] void stop(const std::string& why) {
  std::cerr << "ggml_steps: " << why << "\n";
  std::exit(2);
}

ggml_context* context_of(size_t tensors) {
  return ggml_init({.mem_size = tensors * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true});
}

/// In [-1, 1).
float random_value() {
  static uint64_t state = 88172645463325252ull;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
}

// ---- weights --------------------------------------------------------------------------------------------------------

struct Layer {
  ggml_tensor *input_norm, *q, *q_bias, *k, *k_bias, *v, *v_bias, *output, *post_norm, *gate, *up, *down;
};

class Model {
 public:
  Model(ggml_backend_dev_t device, ggml_type type) : device_(device) {
    const auto matrix = [&](int64_t in, int64_t out, ggml_op op = GGML_OP_MUL_MAT) { return add(type, in, out, op); };
    const auto vector = [&](int64_t size) { return add(GGML_TYPE_F32, size, 1, GGML_OP_ADD); };
    head = matrix(kHidden, kVocab);
    // The embedding is the same matrix unless the two uses want it in different buffers.
    const bool is_shared = buffer_for(type, kHidden, kVocab, GGML_OP_GET_ROWS) == buffer_for(type, kHidden, kVocab, GGML_OP_MUL_MAT);
    embedding = is_shared ? head : matrix(kHidden, kVocab, GGML_OP_GET_ROWS);
    norm = vector(kHidden);
    for (int64_t i = 0; i < kLayers; ++i)
      layers.push_back({.input_norm = vector(kHidden), .q = matrix(kHidden, kHeads * kDim), .q_bias = vector(kHeads * kDim),
                        .k = matrix(kHidden, kKvWidth), .k_bias = vector(kKvWidth), .v = matrix(kHidden, kKvWidth),
                        .v_bias = vector(kKvWidth), .output = matrix(kHeads * kDim, kHidden), .post_norm = vector(kHidden),
                        .gate = matrix(kHidden, kInner), .up = matrix(kHidden, kInner), .down = matrix(kInner, kHidden)});
    for (const auto& [buffer, tensors] : contexts_) {
      ggml_backend_buffer_set_usage(ggml_backend_alloc_ctx_tensors_from_buft(tensors, buffer), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
      for (ggml_tensor* t = ggml_get_first_tensor(tensors); t != nullptr; t = ggml_get_next_tensor(tensors, t)) fill(t);
    }
  }

  ggml_tensor *embedding, *head, *norm;
  std::vector<Layer> layers;
  std::map<std::string, double> buffers_mb;

 private:
  /// The first buffer type in which the device does this operation with such weights; those that pack weights come first.
  ggml_backend_buffer_type_t buffer_for(ggml_type type, int64_t in, int64_t out, ggml_op op) {
    std::vector<ggml_backend_buffer_type_t> types;
    const auto extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device_), "ggml_backend_dev_get_extra_bufts"));
    if (extra != nullptr)
      for (auto* next = extra(device_); next != nullptr && *next != nullptr; ++next) types.push_back(*next);
    types.push_back(ggml_backend_dev_buffer_type(device_));
    for (const ggml_backend_buffer_type_t buffer : types) {
      ggml_context* const tried = context_of(8);
      ggml_tensor* const weights = out > 1 ? ggml_new_tensor_2d(tried, type, in, out) : ggml_new_tensor_1d(tried, type, in);
      ggml_tensor* const input = op == GGML_OP_GET_ROWS ? ggml_new_tensor_1d(tried, GGML_TYPE_I32, 512)
                                                        : ggml_new_tensor_2d(tried, GGML_TYPE_F32, in, 512);
      ggml_tensor* const result = op == GGML_OP_MUL_MAT    ? ggml_mul_mat(tried, weights, input)
                                  : op == GGML_OP_GET_ROWS ? ggml_get_rows(tried, weights, input)
                                                           : ggml_add(tried, input, weights);
      weights->buffer = ggml_backend_buft_alloc_buffer(buffer, 0);
      const bool is_supported = ggml_backend_dev_supports_op(device_, result);
      ggml_backend_buffer_free(weights->buffer);
      ggml_free(tried);
      if (is_supported) return buffer;
    }
    stop(std::string("ggml cannot use weights in ") + ggml_type_name(type));
  }

  ggml_tensor* add(ggml_type type, int64_t in, int64_t out, ggml_op op) {
    const ggml_backend_buffer_type_t buffer = buffer_for(type, in, out, op);
    ggml_context*& context = contexts_[buffer];
    if (context == nullptr) context = context_of(4096);
    ggml_tensor* const weights = out > 1 ? ggml_new_tensor_2d(context, type, in, out) : ggml_new_tensor_1d(context, type, in);
    buffers_mb[std::string(ggml_backend_buft_name(buffer)) + " " + ggml_type_name(type)] += static_cast<double>(ggml_nbytes(weights)) / 1e6;
    return weights;
  }

  /// So that values stay near 1 from layer to layer.
  static void fill(ggml_tensor* weights) {
    const bool is_matrix = weights->ne[1] > 1;
    std::vector<float> row(static_cast<size_t>(weights->ne[0]));
    std::vector<std::byte> all(ggml_nbytes(weights));
    for (int64_t r = 0; r < weights->ne[1]; ++r) {
      for (float& value : row) value = is_matrix ? std::sqrt(3.0f / static_cast<float>(row.size())) * random_value() : 1;
      ggml_quantize_chunk(weights->type, row.data(), all.data() + static_cast<size_t>(r) * ggml_row_size(weights->type, weights->ne[0]), 0, 1,
                          weights->ne[0], nullptr);
    }
    ggml_backend_tensor_set(weights, all.data(), 0, all.size());
  }

  ggml_backend_dev_t device_;
  std::map<ggml_backend_buffer_type_t, ggml_context*> contexts_;
};

// ---- steps ----------------------------------------------------------------------------------------------------------

/// A step of `sequences`, each with `rows` new tokens after `past` that are in the cache; logits of the last one of each.
class Step {
 public:
  Step(const Model& model, ggml_backend_t backend, bool is_flash, int64_t sequences, int64_t rows, int64_t past)
      : backend_(backend), is_flash_(is_flash), sequences_(sequences), rows_(rows), past_(past), cells_(GGML_PAD(past + rows, 256)) {
    buffer_ = ggml_backend_get_default_buffer_type(backend);
    caches_ = context_of(2 * kLayers);
    for (int64_t i = 0; i < 2 * kLayers; ++i) kv_.push_back(ggml_new_tensor_3d(caches_, GGML_TYPE_F16, kKvWidth, cells_, sequences));
    cache_buffer_ = ggml_backend_alloc_ctx_tensors_from_buft(caches_, buffer_);
    ggml_backend_buffer_clear(cache_buffer_, 0);
    constexpr size_t kNodesMax = 4096;
    c_ = ggml_init({kNodesMax * ggml_tensor_overhead() + ggml_graph_overhead_custom(kNodesMax, false), nullptr, true});
    graph_ = ggml_new_graph_custom(c_, kNodesMax, false);
    build(model);
    allocator_ = ggml_gallocr_new(buffer_);
    if (!ggml_gallocr_alloc_graph(allocator_, graph_)) stop("no memory for a step");
    set_inputs();
  }
  Step(const Step&) = delete;
  ~Step() {
    ggml_gallocr_free(allocator_);
    ggml_backend_buffer_free(cache_buffer_);
    ggml_free(c_);
    ggml_free(caches_);
  }

  double run_s() {
    const auto begin = std::chrono::steady_clock::now();
    if (ggml_backend_graph_compute(backend_, graph_) != GGML_STATUS_SUCCESS) stop("a step failed");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  bool is_finite() const {
    const auto* const values = static_cast<const float*>(logits_->data);
    return std::all_of(values, values + ggml_nelements(logits_), [](float value) { return std::isfinite(value); });
  }

 private:
  int64_t tokens() const { return sequences_ * rows_; }
  int64_t seen() const { return GGML_PAD(past_ + rows_, 8); }

  ggml_tensor* input(ggml_type type, int64_t a, int64_t b = 1, int64_t d = 1) {
    ggml_tensor* const made = ggml_new_tensor_4d(c_, type, a, b, 1, d);
    ggml_set_input(made);
    ggml_set_output(made);  // else its memory would be used again within the step
    return made;
  }
  ggml_tensor* normed(ggml_tensor* x, ggml_tensor* weights) { return ggml_mul(c_, ggml_rms_norm(c_, x, 1e-6f), weights); }
  ggml_tensor* rotated(ggml_tensor* x) {
    return ggml_rope_ext(c_, x, positions_, nullptr, kDim, GGML_ROPE_TYPE_NEOX, 32768, 1e6f, 1, 0, 1, 32, 1);
  }
  void then(ggml_tensor* x) { ggml_build_forward_expand(graph_, x); }

  void build(const Model& model) {
    tokens_ = input(GGML_TYPE_I32, tokens());
    positions_ = input(GGML_TYPE_I32, tokens());
    last_ = input(GGML_TYPE_I32, sequences_);
    key_cells_ = input(GGML_TYPE_I64, tokens());
    value_cells_ = input(GGML_TYPE_I64, is_flash_ ? tokens() : tokens() * kKvWidth);
    mask_ = input(is_flash_ ? GGML_TYPE_F16 : GGML_TYPE_F32, seen(), rows_, sequences_);
    ggml_tensor* x = ggml_get_rows(c_, model.embedding, tokens_);
    for (size_t i = 0; i < model.layers.size(); ++i) {
      const Layer& layer = model.layers[i];
      ggml_tensor* attended = ggml_mul_mat(c_, layer.output, attention(layer, normed(x, layer.input_norm), kv_[2 * i], kv_[2 * i + 1]));
      if (i + 1 == model.layers.size()) {
        attended = ggml_get_rows(c_, attended, last_);
        x = ggml_get_rows(c_, x, last_);
      }
      x = ggml_add(c_, attended, x);
      ggml_tensor* const inner = normed(x, layer.post_norm);
      ggml_tensor* const up = ggml_mul_mat(c_, layer.up, inner);
      x = ggml_add(c_, ggml_mul_mat(c_, layer.down, ggml_swiglu_split(c_, ggml_mul_mat(c_, layer.gate, inner), up)), x);
    }
    logits_ = ggml_mul_mat(c_, model.head, normed(x, model.norm));
    ggml_set_output(logits_);
    then(logits_);
  }

  /// Without flash attention the cache has values transposed.
  ggml_tensor* attention(const Layer& layer, ggml_tensor* x, ggml_tensor* keys, ggml_tensor* values) {
    constexpr size_t kBytes = sizeof(ggml_fp16_t), kRow = kBytes * kKvWidth;
    const size_t stream = kRow * static_cast<size_t>(cells_);
    const auto projected = [&](ggml_tensor* weights, ggml_tensor* bias, int64_t heads) {
      return ggml_reshape_3d(c_, ggml_add(c_, ggml_mul_mat(c_, weights, x), bias), kDim, heads, tokens());
    };
    ggml_tensor* q = rotated(projected(layer.q, layer.q_bias, kHeads));
    ggml_tensor* k = rotated(projected(layer.k, layer.k_bias, kKvHeads));
    ggml_tensor* v = projected(layer.v, layer.v_bias, kKvHeads);
    for (ggml_tensor* made : {q, v, k}) then(made);
    const int64_t all_cells = cells_ * sequences_;
    then(ggml_set_rows(c_, ggml_reshape_2d(c_, keys, kKvWidth, all_cells), ggml_view_2d(c_, k, kKvWidth, tokens(), k->nb[2], 0), key_cells_));
    then(is_flash_ ? ggml_set_rows(c_, ggml_reshape_2d(c_, values, kKvWidth, all_cells),
                                   ggml_view_2d(c_, v, kKvWidth, tokens(), v->nb[2], 0), value_cells_)
                   : ggml_set_rows(c_, ggml_reshape_2d(c_, values, 1, kKvWidth * all_cells), ggml_reshape_2d(c_, v, 1, tokens() * kKvWidth),
                                   value_cells_));
    const auto by_head = [&](ggml_tensor* part) { return ggml_permute(c_, part, 0, 2, 1, 3); };
    k = by_head(ggml_view_4d(c_, keys, kDim, kKvHeads, seen(), sequences_, kBytes * kDim, kRow, stream, 0));
    q = by_head(ggml_view_4d(c_, q, kDim, kHeads, rows_, sequences_, q->nb[1], q->nb[2], q->nb[3] / static_cast<size_t>(sequences_), 0));
    const float scale = 1 / std::sqrt(static_cast<float>(kDim));
    if (is_flash_) {
      v = by_head(ggml_view_4d(c_, values, kDim, kKvHeads, seen(), sequences_, kBytes * kDim, kRow, stream, 0));
      ggml_tensor* const out = ggml_flash_attn_ext(c_, q, k, v, mask_, scale, 0, 0);
      ggml_flash_attn_ext_set_prec(out, GGML_PREC_F32);
      return ggml_reshape_2d(c_, out, kHeads * kDim, tokens());
    }
    const size_t column = kBytes * static_cast<size_t>(cells_);
    v = by_head(ggml_view_4d(c_, values, seen(), kKvHeads, kDim, sequences_, column * kDim, column, stream, 0));
    ggml_tensor* const scores = ggml_mul_mat(c_, k, q);
    ggml_mul_mat_set_prec(scores, GGML_PREC_F32);
    ggml_tensor* const out = ggml_mul_mat(c_, v, ggml_soft_max_ext(c_, scores, mask_, scale, 0));
    return ggml_cont_2d(c_, by_head(out), kHeads * kDim, tokens());
  }

  void set_inputs() {
    for (int64_t s = 0; s < sequences_; ++s) {
      static_cast<int32_t*>(last_->data)[s] = static_cast<int32_t>(s * rows_ + rows_ - 1);
      for (int64_t r = 0; r < rows_; ++r) {
        const int64_t n = s * rows_ + r, cell = past_ + r;
        static_cast<int32_t*>(tokens_->data)[n] = static_cast<int32_t>((n * 7919 + 13) % kVocab);
        static_cast<int32_t*>(positions_->data)[n] = static_cast<int32_t>(cell);
        auto* const to = static_cast<int64_t*>(value_cells_->data);
        static_cast<int64_t*>(key_cells_->data)[n] = s * cells_ + cell;
        if (is_flash_) to[n] = s * cells_ + cell;
        for (int64_t e = 0; e < kKvWidth && !is_flash_; ++e) to[n * kKvWidth + e] = (s * kKvWidth + e) * cells_ + cell;
        for (int64_t j = 0; j < seen(); ++j) {
          const float value = j <= cell ? 0.0f : -INFINITY;
          if (is_flash_) static_cast<ggml_fp16_t*>(mask_->data)[n * seen() + j] = ggml_fp32_to_fp16(value);
          if (!is_flash_) static_cast<float*>(mask_->data)[n * seen() + j] = value;
        }
      }
    }
  }

  ggml_backend_t backend_;
  const bool is_flash_;
  const int64_t sequences_, rows_, past_, cells_;
  ggml_backend_buffer_type_t buffer_ = nullptr;
  ggml_context *caches_ = nullptr, *c_ = nullptr;
  ggml_backend_buffer_t cache_buffer_ = nullptr;
  ggml_gallocr_t allocator_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  std::vector<ggml_tensor*> kv_;  // keys and values of each layer in turn
  ggml_tensor *tokens_ = nullptr, *positions_ = nullptr, *last_ = nullptr, *key_cells_ = nullptr, *value_cells_ = nullptr, *mask_ = nullptr;
  ggml_tensor* logits_ = nullptr;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

ggml_type type_of(const std::string& name) {
  for (int t = 0; t < GGML_TYPE_COUNT; ++t)
    if (const char* known = ggml_type_name(static_cast<ggml_type>(t)); known != nullptr && name == known) return static_cast<ggml_type>(t);
  stop("DTYPE is \"" + name + "\": expected a type of ggml, such as bf16 or q8_0");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) stop("usage: ggml_steps DTYPE decodeN|prefillN ROUNDS [THREADS]");
  const std::string dtype = argv[1], phase = argv[2];
  const bool is_decode = phase.starts_with("decode");
  const int64_t count = std::atoll(phase.substr(is_decode ? 6 : phase.starts_with("prefill") ? 7 : 0).c_str());
  const int rounds = std::atoi(argv[3]), threads = argc > 4 ? std::atoi(argv[4]) : 2;
  if (count < 1 || rounds < 1 || threads < 1) stop("CASE, ROUNDS or THREADS is no number above 0");

  ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  const ggml_backend_t backend = ggml_backend_cpu_init();
  ggml_threadpool_params pool = ggml_threadpool_params_default(threads);
  ggml_backend_cpu_set_n_threads(backend, threads);
  ggml_backend_cpu_set_threadpool(backend, ggml_threadpool_new(&pool));
  const Model model(ggml_backend_get_device(backend), type_of(dtype));
  const auto step = [&](bool is_flash) {
    return is_decode ? std::make_unique<Step>(model, backend, is_flash, count, 1, kContext)
                     : std::make_unique<Step>(model, backend, is_flash, 1, count, 0);
  };
  double tried_s[2];
  for (const bool is_flash : {false, true}) {
    const auto trial = step(is_flash);
    trial->run_s();
    tried_s[is_flash] = std::min(trial->run_s(), trial->run_s());
  }
  const bool is_flash = tried_s[1] <= tried_s[0];
  const auto timed = step(is_flash);
  timed->run_s();
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) seconds.push_back(timed->run_s());
  if (!timed->is_finite()) stop("a logit is not finite");
  std::cout << nlohmann::json{{"bench", "ggml_steps"}, {"dtype", dtype}, {"case", phase}, {"threads", threads}, {"rounds", rounds},
                              {"attention", is_flash ? "flash" : "softmax"}, {"tokens_per_s", static_cast<double>(count) / median(seconds)},
                              {"buffers_mb", model.buffers_mb}}
            << std::endl;
  return 0;
}
