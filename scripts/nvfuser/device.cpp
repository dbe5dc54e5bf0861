// A device that is not there: what nvFuser asks of CUDA before it has a kernel to launch.
//
// Loaded before PyTorch (ctypes.CDLL with RTLD_GLOBAL), these functions stand before PyTorch's and
// the runtime's own of the same names. They describe an H200 and say that all went well. nvFuser
// then segments, schedules and generates code for it, and NVRTC, which is real, compiles that.
// Occupancy and registers are invented; nothing is loaded, nothing runs.

#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

namespace {

cudaDeviceProp h200() {
  cudaDeviceProp p;
  std::memset(&p, 0, sizeof p);
  std::strcpy(p.name, "an H200 that is not there");
  p.major = 9;
  p.minor = 0;
  p.multiProcessorCount = 132;
  p.warpSize = 32;
  p.totalGlobalMem = size_t{143771} << 20;
  p.l2CacheSize = 60 << 20;
  p.persistingL2CacheMaxSize = 39321600;
  p.memoryBusWidth = 6144;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsDim[0] = 1024;
  p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 2147483647;
  p.maxGridSize[1] = 65535;
  p.maxGridSize[2] = 65535;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxBlocksPerMultiProcessor = 32;
  p.regsPerBlock = 65536;
  p.regsPerMultiprocessor = 65536;
  p.sharedMemPerBlock = 48 << 10;
  p.sharedMemPerBlockOptin = 227 << 10;
  p.sharedMemPerMultiprocessor = 228 << 10;
  p.reservedSharedMemPerBlock = 1 << 10;
  p.cooperativeLaunch = 1;
  p.concurrentKernels = 1;
  p.unifiedAddressing = 1;
  p.globalL1CacheSupported = 1;
  p.localL1CacheSupported = 1;
#if CUDART_VERSION < 13000
  p.clockRate = 1980000;
  p.memoryClockRate = 3201000;
#endif
  return p;
}

cudaDeviceProp& device() {
  static cudaDeviceProp found = h200();
  return found;
}

c10::cuda::CUDAStream stream() {
  c10::Device first(c10::DeviceType::CUDA, 0);
  return c10::cuda::CUDAStream(
      c10::cuda::CUDAStream::UNCHECKED, c10::Stream(c10::Stream::DEFAULT, first));
}

// Functions of the driver. Most need only say that they succeeded; C lets them ignore arguments.

CUresult succeed() {
  return CUDA_SUCCESS;
}

CUresult loaded(CUmodule* module) {
  *module = reinterpret_cast<CUmodule>(1);
  return CUDA_SUCCESS;
}

CUresult function(CUfunction* found) {
  *found = reinterpret_cast<CUfunction>(1);
  return CUDA_SUCCESS;
}

CUresult attribute_of_function(int* value, CUfunction_attribute which) {
  *value = which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
  return CUDA_SUCCESS;
}

CUresult blocks(int* count, CUfunction, int threads) {
  int fitting = device().maxThreadsPerMultiProcessor / (threads > 0 ? threads : 1);
  *count = fitting > 32 ? 32 : fitting < 1 ? 1 : fitting;
  return CUDA_SUCCESS;
}

CUresult shared_memory(size_t* bytes) {
  *bytes = device().sharedMemPerBlockOptin;
  return CUDA_SUCCESS;
}

CUresult clusters(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult error_text(CUresult, const char** text) {
  *text = "no device is there";
  return CUDA_SUCCESS;
}

CUresult first_device(CUdevice* found) {
  *found = 0;
  return CUDA_SUCCESS;
}

CUresult attribute_of_device(int* value) {
  *value = 1;
  return CUDA_SUCCESS;
}

CUresult name_of_device(char* name, int length) {
  std::strncpy(name, device().name, length);
  return CUDA_SUCCESS;
}

void* entry(const std::string& name) {
  if (name == "cuModuleLoadDataEx" || name == "cuModuleLoadData") return (void*)&loaded;
  if (name == "cuModuleGetFunction") return (void*)&function;
  if (name == "cuFuncGetAttribute") return (void*)&attribute_of_function;
  if (name == "cuOccupancyMaxActiveBlocksPerMultiprocessor") return (void*)&blocks;
  if (name == "cuOccupancyAvailableDynamicSMemPerBlock") return (void*)&shared_memory;
  if (name == "cuOccupancyMaxActiveClusters") return (void*)&clusters;
  if (name == "cuOccupancyMaxPotentialClusterSize") return (void*)&clusters;
  if (name == "cuGetErrorName" || name == "cuGetErrorString") return (void*)&error_text;
  if (name == "cuDeviceGet") return (void*)&first_device;
  if (name == "cuDeviceGetAttribute") return (void*)&attribute_of_device;
  if (name == "cuDeviceGetName") return (void*)&name_of_device;
  return (void*)&succeed;
}

}  // namespace

namespace at::cuda {

cudaDeviceProp* getCurrentDeviceProperties() {
  return &device();
}
cudaDeviceProp* getDeviceProperties(int8_t) {
  return &device();
}
int warp_size() {
  return device().warpSize;
}

namespace jit {
void initializeCudaContext() {}
}  // namespace jit

}  // namespace at::cuda

namespace c10::cuda {

DeviceIndex current_device() {
  return 0;
}
void set_device(DeviceIndex, const bool) {}
cudaError_t GetDevice(DeviceIndex* found) {
  *found = 0;
  return cudaSuccess;
}
cudaError_t SetDevice(DeviceIndex, const bool) {
  return cudaSuccess;
}
cudaError_t MaybeSetDevice(DeviceIndex) {
  return cudaSuccess;
}
void SetTargetDevice() {}
DeviceIndex ExchangeDevice(DeviceIndex) {
  return 0;
}
DeviceIndex MaybeExchangeDevice(DeviceIndex) {
  return 0;
}
CUDAStream getCurrentCUDAStream(DeviceIndex) {
  return stream();
}
CUDAStream getDefaultCUDAStream(DeviceIndex) {
  return stream();
}
void setCurrentCUDAStream(CUDAStream) {}
cudaStream_t CUDAStream::stream() const {
  return nullptr;
}

}  // namespace c10::cuda

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** found, unsigned int, unsigned long long,
    cudaDriverEntryPointQueryResult* result) {
  *found = entry(name);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
