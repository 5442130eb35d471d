#include "kernels/cuda/gemm/cublas.h"

#include <cublas_v2.h>
#include <dlfcn.h>

#include "kernels/base/math.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm/gemm.h"

namespace minfer::cuda {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;  // cuBLAS asks for 32 MiB on Hopper

// Tries version 13 on the loader's search path, the toolkit of the build, then version 12. The
// library is never closed, because cuBLAS registers functions that run when the process ends.
void* open_library() {
  std::string fault;
  for (const char* name :
       {"libcublas.so.13", MINFER_CUDA_LIBRARY_DIR "/libcublas.so", "libcublas.so.12"}) {
    if (void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    if (fault.empty()) fault = ::dlerror();
  }
  throw Error(ErrorKind::Gpu, cat("cuBLAS was not found: ", shortened(fault, 200)));
}

cudaDataType_t cublas_type(DType dtype) {
  if (dtype == DType::F16) return CUDA_R_16F;
  if (dtype == DType::BF16) return CUDA_R_16BF;
  MINFER_CHECK(dtype == DType::F32, "cuBLAS: ", dtype);
  return CUDA_R_32F;
}

}  // namespace

struct Cublas::Library {
  void* opened = open_library();
  // The header overloads cublasGemmEx, so decltype cannot give its type.
  using GemmEx = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                    int, const void*, const void*, cudaDataType, int, const void*,
                                    cudaDataType, int, const void*, void*, cudaDataType, int,
                                    cublasComputeType_t, cublasGemmAlgo_t);
  GemmEx gemm_ex = find<GemmEx>("cublasGemmEx");
  decltype(&cublasCreate_v2) create = find<decltype(create)>("cublasCreate_v2");
  decltype(&cublasDestroy_v2) destroy = find<decltype(destroy)>("cublasDestroy_v2");
  decltype(&cublasSetStream_v2) set_stream = find<decltype(set_stream)>("cublasSetStream_v2");
  decltype(&cublasSetWorkspace_v2) set_workspace =
      find<decltype(set_workspace)>("cublasSetWorkspace_v2");
  decltype(&cublasSetMathMode) set_math_mode = find<decltype(set_math_mode)>("cublasSetMathMode");
  decltype(&cublasGetStatusString) status_string =
      find<decltype(status_string)>("cublasGetStatusString");
  cublasHandle_t handle = nullptr;

  Library() { check(create(&handle), "cublasCreate"); }
  ~Library() { destroy(handle); }

  void check(cublasStatus_t status, const char* call) const {
    MINFER_REQUIRE(Gpu, status == CUBLAS_STATUS_SUCCESS, call, ": ", status_string(status));
  }

 private:
  template <typename Function>
  Function find(const char* name) const {
    void* const symbol = ::dlsym(opened, name);
    MINFER_REQUIRE(Gpu, symbol != nullptr, "this cuBLAS has no ", name);
    return reinterpret_cast<Function>(symbol);
  }
};

// Sums stay f32 even where cuBLAS splits k: the same arithmetic as in our kernels.
Cublas::Cublas(cudaStream_t stream)
    : stream_(stream),
      workspace_(allocate_device(DType::U8, {kWorkspaceBytes})),
      library_(std::make_unique<Library>()) {
  const Library& l = *library_;
  l.check(l.set_stream(l.handle, stream), "cublasSetStream");
  // cuBLAS would allocate its own workspace during a capture. Set ours after the stream, because
  // cublasSetStream resets the workspace.
  l.check(l.set_workspace(l.handle, workspace_.view().data, size_t(kWorkspaceBytes)),
          "cublasSetWorkspace");
  const auto mode = cublasMath_t(int(CUBLAS_DEFAULT_MATH) |
                                 int(CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
  l.check(l.set_math_mode(l.handle, mode), "cublasSetMathMode");
}

Cublas::~Cublas() = default;

void Cublas::gemm(Tensor out, Tensor x, Tensor w, bool accumulate) {
  MINFER_CHECK(x.shape.rank == 2 && w.shape.rank == 2 && x.shape[1] == w.shape[1] &&
                   x.dtype == w.dtype && out.shape == (Shape{x.shape[0], w.shape[0]}) &&
                   (!accumulate || out.dtype == DType::F32),
               "cuBLAS: x ", x.dtype, " ", x.shape, ", w ", w.dtype, " ", w.shape, ", out ",
               out.dtype, " ", out.shape);
  const int m = narrow<int>(x.shape[0]), n = narrow<int>(w.shape[0]), k = narrow<int>(x.shape[1]);
  if (m == 0) return;
  const float one = 1, beta = accumulate ? 1 : 0;
  // cuBLAS is column-major, and sees our row-major matrices as their transposes: outᵀ = w xᵀ.
  library_->check(
      library_->gemm_ex(library_->handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, w.data,
                        cublas_type(w.dtype), k, x.data, cublas_type(x.dtype), k, &beta, out.data,
                        cublas_type(out.dtype), n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "cublasGemmEx");
}

void Cublas::gemm(Tensor x, std::span<const GemmPart> parts, Epilogue epilogue) {
  check_gemm(x, parts, epilogue);
  if (x.shape[0] == 0) return;
  const auto with_bias = [&](Tensor out, const GemmPart& part) {
    gemm(out, x, part.w, epilogue == Epilogue::Accumulate);
    if (part.bias) add_bias(stream_, out, out, part.bias);
  };
  switch (epilogue) {
    case Epilogue::Store:
    case Epilogue::Accumulate:
      for (const GemmPart& part : parts) with_bias(part.out, part);
      return;
    case Epilogue::SwiGlu:
    case Epilogue::GeGluErf:
    case Epilogue::GeGluTanh: {
      const Tensor out = parts[0].out;
      if (!up_ || up_.view().n_bytes() < out.n_bytes()) {
        up_ = {};
        up_ = allocate_device(DType::U8, {out.n_bytes()});
      }
      const Tensor up{up_.view().data, out.dtype, out.shape};
      with_bias(out, parts[0]);
      with_bias(up, parts[1]);
      const Activation activation = epilogue == Epilogue::SwiGlu     ? Activation::Silu
                                    : epilogue == Epilogue::GeGluErf ? Activation::GeluErf
                                                                     : Activation::GeluTanh;
      return glu(stream_, out, out, up, activation);
    }
    case Epilogue::GeluErf:
    case Epilogue::GeluTanh:
      for (const GemmPart& part : parts) {
        gemm(part.out, x, part.w, false);
        gelu(stream_, part.out, part.out, part.bias,
             epilogue == Epilogue::GeluErf ? GeluKind::Erf : GeluKind::Tanh);
      }
      return;
  }
}

}  // namespace minfer::cuda
