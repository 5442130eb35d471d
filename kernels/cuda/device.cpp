#include "kernels/cuda/device.h"

namespace minfer::cuda {
namespace {

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  MINFER_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, index));
  return value;
}

// The binary has machine code for other cards only, or PTX that this driver does not compile.
bool is_missing_image(cudaError_t status) {
  return status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction ||
         status == cudaErrorUnsupportedPtxVersion || status == cudaErrorInvalidPtx ||
         status == cudaErrorJitCompilerNotFound || status == cudaErrorInvalidKernelImage;
}

}  // namespace

DeviceProperties use_device(int index) {
  int n_devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&n_devices);
  MINFER_REQUIRE(Gpu, status == cudaSuccess && n_devices > 0, "no CUDA card: ",
                 status == cudaSuccess ? "the driver finds none" : cudaGetErrorString(status));
  MINFER_REQUIRE(Gpu, index >= 0 && index < n_devices, "cuda:", index, ": this machine has ",
                 n_devices, n_devices == 1 ? " card" : " cards");
  MINFER_CUDA_CHECK(cudaSetDevice(index));
  DeviceProperties p;
  cudaDeviceProp properties{};
  MINFER_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  p.name = properties.name;
  p.index = index;
  p.compute_capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor, index) +
                         attribute(cudaDevAttrComputeCapabilityMinor, index);
  p.n_sms = attribute(cudaDevAttrMultiProcessorCount, index);
  MINFER_REQUIRE(Gpu, p.compute_capability >= 80, "cuda:", index, " is a ", p.name,
                 " of compute capability ", p.compute_capability / 10, ".",
                 p.compute_capability % 10, ", expected 8.0 or newer");
  const cudaError_t image = kernel_image_status();
  MINFER_REQUIRE(Gpu, !is_missing_image(image), "cuda:", index, " is a ", p.name,
                 " of compute capability ", p.compute_capability / 10, ".",
                 p.compute_capability % 10, ", this build has kernels for ", MINFER_CUDA_ARCHS,
                 " (MINFER_CUDA_ARCHS) and none that runs there: ", cudaGetErrorString(image));
  MINFER_CUDA_CHECK(image);
  return p;
}

bool runs_hopper_code(const void* kernel) {
  int device = 0;
  cudaFuncAttributes attributes{};
  MINFER_CUDA_CHECK(cudaGetDevice(&device));
  MINFER_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  return attribute(cudaDevAttrComputeCapabilityMajor, device) == 9 && attributes.ptxVersion >= 90;
}

DeviceTensor allocate_device(DType dtype, const Shape& shape) {
  const int64_t n_bytes = std::max<int64_t>(bytes_of(dtype, shape), 1);
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, static_cast<size_t>(n_bytes));
  if (status != cudaSuccess) cudaGetLastError();
  MINFER_REQUIRE(Memory, status != cudaErrorMemoryAllocation, "the card has no ", n_bytes,
                 " bytes left for ", dtype, " ", shape);
  MINFER_CUDA_CHECK(status);
  return DeviceTensor({memory, dtype, shape}, [](void* p) { cudaFree(p); });
}

Stream make_stream() {
  cudaStream_t stream = nullptr;
  MINFER_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

CardChange::CardChange() { MINFER_CUDA_CHECK(cudaGetDevice(&before_)); }

void CardChange::to(int card) { MINFER_CUDA_CHECK(cudaSetDevice(card)); }

Event make_event() {
  cudaEvent_t event = nullptr;
  MINFER_CUDA_CHECK(cudaEventCreate(&event));
  return Event(event);
}

Event make_event_without_time() {
  cudaEvent_t event = nullptr;
  MINFER_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return Event(event);
}

}  // namespace minfer::cuda
