// A device for PyTorch (PrivateUse1) that computes on the CPU, and whose memory no other code can read.
//
// An address of the device is an address of the host with one bit flipped, which no process may use: whoever reads a
// tensor of the device without copying it is stopped by the processor. Operations get tensors of the host that share
// the memory of their arguments. All work is done when it is queued; streams and events only have names and times.
// Counters say how much crosses between host and device, and how often the host waits for a value.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace my_device {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kNumDevices = 2;
constexpr uintptr_t kFlippedBit = uintptr_t(1) << 54;
constexpr size_t kAlignment = 64;

// ---- Counters ------------------------------------------------------------------------------------------------------

std::atomic<int64_t> copies_to_device{0}, bytes_to_device{0};
std::atomic<int64_t> copies_to_host{0}, bytes_to_host{0};
std::atomic<int64_t> waits{0};
std::atomic<int64_t> operations{0};

// ---- Memory --------------------------------------------------------------------------------------------------------

void* flip(const void* address) {
  return address == nullptr ? nullptr : reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) ^ kFlippedBit);
}

struct Usage {
  std::mutex mutex;
  int64_t capacity = int64_t(1) << 30;
  int64_t current = 0, peak = 0;
};
Usage usages[kNumDevices];

// Raises where there is no room for so many bytes more.
void check_room(c10::DeviceIndex index, int64_t num_bytes) {
  auto& usage = usages[index];
  int64_t current = 0, capacity = 0;
  {
    std::lock_guard<std::mutex> lock(usage.mutex);
    current = usage.current;
    capacity = usage.capacity;
  }
  TORCH_CHECK_WITH(
      OutOfMemoryError,
      current + num_bytes <= capacity,
      "npu:", int(index), " is out of memory: ", num_bytes, " bytes are wanted, ", current, " of ", capacity,
      " are in use");
}

void charge(c10::DeviceIndex index, int64_t num_bytes) {
  auto& usage = usages[index];
  std::lock_guard<std::mutex> lock(usage.mutex);
  usage.current += num_bytes;
  usage.peak = std::max(usage.peak, usage.current);
}

void give_back(c10::DeviceIndex index, int64_t num_bytes) {
  std::lock_guard<std::mutex> lock(usages[index].mutex);
  usages[index].current -= num_bytes;
}

// Some accelerators have no numbers of 64 bits, and neither has this one.
void check_type(caffe2::TypeMeta type) {
  TORCH_CHECK_TYPE(type != caffe2::TypeMeta::Make<double>(), "npu has no float64");
}

// Owns a piece of memory: one of its own, or the result of an operation on the host.
struct Piece {
  c10::DeviceIndex index;
  int64_t num_bytes;
  void* own = nullptr;
  c10::Storage result{};

  ~Piece() {
    std::free(own);
    give_back(index, num_bytes);
  }
};

void delete_piece(void* piece) {
  delete static_cast<Piece*>(piece);
}

thread_local c10::DeviceIndex current_index = 0;
thread_local c10::StreamId current_streams[kNumDevices] = {0, 0};
std::atomic<c10::StreamId> last_stream{0};

c10::Device device_of(c10::DeviceIndex index) {
  return c10::Device(kType, index);
}

c10::DeviceIndex checked(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < kNumDevices, "there is no npu:", int(index));
  return index;
}

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t num_bytes) override {
    const auto index = current_index;
    if (num_bytes == 0) {
      return {nullptr, device_of(index)};
    }
    check_room(index, int64_t(num_bytes));
    charge(index, int64_t(num_bytes));
    auto piece = std::unique_ptr<Piece>(new Piece{index, int64_t(num_bytes)});
    if (posix_memalign(&piece->own, kAlignment, num_bytes) != 0) {
      piece->own = nullptr;  // its value is not defined then
      TORCH_CHECK_WITH(OutOfMemoryError, false, "the host is out of memory");
    }
    void* address = flip(piece->own);
    return {address, piece.release(), &delete_piece, device_of(index)};
  }
  void copy_data(void* target, const void* source, size_t num_bytes) const override {
    std::memcpy(flip(target), flip(source), num_bytes);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    auto& usage = usages[checked(index)];
    std::lock_guard<std::mutex> lock(usage.mutex);
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* all : {&stats.allocated_bytes, &stats.reserved_bytes}) {
      (*all)[0].current = usage.current;
      (*all)[0].peak = usage.peak;
    }
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override {
    auto& usage = usages[checked(index)];
    std::lock_guard<std::mutex> lock(usage.mutex);
    usage.peak = usage.current;
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    auto& usage = usages[checked(index)];
    std::lock_guard<std::mutex> lock(usage.mutex);
    return {size_t(usage.capacity - usage.current), size_t(usage.capacity)};
  }
};

DeviceMemory device_memory;
static const bool has_memory = (c10::SetAllocator(kType, &device_memory, 1), true);

// Pinned host memory: ordinary memory that knows that it is pinned.
struct PinnedMemory final : c10::Allocator {
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::map<uintptr_t, size_t>& pieces() {
    static std::map<uintptr_t, size_t> all;
    return all;
  }
  static void release(void* address) {
    {
      std::lock_guard<std::mutex> lock(mutex());
      pieces().erase(reinterpret_cast<uintptr_t>(address));
    }
    std::free(address);
  }
  c10::DataPtr allocate(size_t num_bytes) override {
    void* address = nullptr;
    TORCH_CHECK(posix_memalign(&address, kAlignment, std::max<size_t>(num_bytes, 1)) == 0, "no memory to pin");
    std::lock_guard<std::mutex> lock(mutex());
    pieces()[reinterpret_cast<uintptr_t>(address)] = num_bytes;
    return {address, address, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* target, const void* source, size_t num_bytes) const override {
    std::memcpy(target, source, num_bytes);
  }
  static bool holds(const void* address) {
    std::lock_guard<std::mutex> lock(mutex());
    const auto place = reinterpret_cast<uintptr_t>(address);
    auto next = pieces().upper_bound(place);
    if (next == pieces().begin()) {
      return false;
    }
    --next;
    return place < next->first + std::max<size_t>(next->second, 1);
  }
};

PinnedMemory pinned_memory;

// ---- Devices, streams, events --------------------------------------------------------------------------------------

struct Event {
  std::chrono::steady_clock::time_point time;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kType;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    return device_of(std::exchange(current_index, checked(device.index())));
  }
  c10::Device getDevice() const override {
    return device_of(current_index);
  }
  void setDevice(c10::Device device) const override {
    current_index = checked(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_index = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    const auto index = device.has_index() ? checked(device.index()) : current_index;
    return c10::Stream(c10::Stream::UNSAFE, device_of(index), current_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const auto index = device.has_index() ? checked(device.index()) : current_index;
    return c10::Stream(c10::Stream::UNSAFE, device_of(index), ++last_stream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = std::exchange(current_streams[checked(stream.device_index())], stream.id());
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), before);
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kNumDevices;
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Event();
    }
    static_cast<Event*>(*event)->time = std::chrono::steady_clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    const auto took = static_cast<Event*>(second)->time - static_cast<Event*>(first)->time;
    return std::chrono::duration<double, std::milli>(took).count();
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---- Random numbers ------------------------------------------------------------------------------------------------

// A generator of the device; operations get the host's that it holds.
struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(c10::DeviceIndex index) : inner(at::make_generator<at::CPUGeneratorImpl>()) {
    device_ = device_of(index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
  void set_current_seed(uint64_t seed) override {
    inner.set_current_seed(seed);
  }
  uint64_t current_seed() const override {
    return inner.current_seed();
  }
  uint64_t seed() override {
    return inner.seed();
  }
  at::Generator inner;
};

at::Generator make_generator(c10::DeviceIndex index) {
  return at::make_generator<Generator>(index < 0 ? current_index : checked(index));
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return kNumDevices;
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    current_index = checked(index);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_index;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current_index, checked(index));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_index : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static const std::vector<at::Generator> all = {make_generator(0), make_generator(1)};
    return all[index < 0 ? current_index : checked(index)];
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return make_generator(index);
  }
  at::Device getDeviceFromPtr(void*) const override {
    return device_of(current_index);
  }
  bool isPinnedPtr(const void* address) const override {
    return PinnedMemory::holds(address);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_memory;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t num_bytes) const override {
    c10::DeviceGuard guard(storage.device());
    auto fresh = device_memory.allocate(num_bytes);
    const auto kept = std::min(num_bytes, storage.nbytes());
    if (kept > 0 && storage.data() != nullptr) {
      std::memcpy(flip(fresh.get()), flip(storage.data()), kept);
    }
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(num_bytes);
  }
};

static const bool has_hooks = (at::RegisterPrivateUse1HooksInterface(new Hooks()), true);

// ---- Operations ----------------------------------------------------------------------------------------------------

// The arguments of one operation as tensors of the host, and its results as tensors of the device.
class Call {
 public:
  // A tensor of the host in the memory of `tensor`. Raises for a tensor of the host that is more than a number.
  at::Tensor to_host(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    if (tensor.device().type() != kType) {
      TORCH_CHECK(
          tensor.is_meta() || tensor.dim() == 0,
          "expected all tensors to be on npu, but one of shape ", tensor.sizes(), " is on ", tensor.device());
      return tensor;
    }
    TORCH_CHECK(
        !device_.has_value() || *device_ == tensor.device(), "tensors are on ", *device_, " and ", tensor.device());
    device_ = tensor.device();
    for (const auto& [original, alias] : pairs_) {
      if (original.is_same(tensor)) {
        return alias;
      }
    }
    auto alias = at::detail::make_tensor<c10::TensorImpl>(
        find_storage(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.is_conj()) {
      alias._set_conj(true);
    }
    if (tensor.is_neg()) {
      alias._set_neg(true);
    }
    pairs_.emplace_back(tensor, alias);
    return alias;
  }

  void use(c10::Device device) {
    device_ = device;
  }

  // Raise where what the device has adopted is more than it has room for. Not while arguments and results are changed:
  // they would be left half changed.
  void check_room() const {
    if (num_adopted_ > 0) {
      my_device::check_room(device_.value_or(device_of(current_index)).index(), 0);
    }
  }

  // A tensor of the device in the memory of `tensor`, which is a result or an argument.
  at::Tensor to_device(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.device().is_cpu()) {
      return tensor;
    }
    for (const auto& [original, alias] : pairs_) {
      if (alias.is_same(tensor)) {
        return original;
      }
    }
    for (const auto& [original, alias] : pairs_) {
      if (alias.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) {
        return at::native::as_strided_tensorimpl(original, tensor.sizes(), tensor.strides(), tensor.storage_offset());
      }
    }
    check_type(tensor.dtype());
    const auto num_bytes = int64_t(tensor.storage().nbytes());
    c10::Storage own(
        c10::Storage::use_byte_size_t(), num_bytes, adopt(tensor.storage()), &device_memory, /*resizable=*/true);
    auto result = at::detail::make_tensor<c10::TensorImpl>(
        std::move(own), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), tensor.dtype());
    result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    return result;
  }

  // Give arguments the shapes, and the memory, that an operation in place gave them.
  void keep_shapes() {
    for (auto& [original, alias] : storages_) {
      if (flip(original.data()) != alias.data()) {
        original.set_data_ptr_noswap(adopt(alias));
        original.set_nbytes(alias.nbytes());
      }
    }
    for (const auto& [original, alias] : pairs_) {
      if (original.sizes() != alias.sizes() || original.strides() != alias.strides()) {
        original.unsafeGetTensorImpl()->set_sizes_and_strides(
            alias.sizes(), alias.strides(), alias.storage_offset());
      }
    }
  }

 private:
  // The memory of a storage of the host, which the device owns from now on.
  c10::DataPtr adopt(const c10::Storage& storage) {
    const auto device = device_.value_or(device_of(current_index));
    const auto num_bytes = int64_t(storage.nbytes());
    charge(device.index(), num_bytes);
    num_adopted_ += num_bytes;
    auto* piece = new Piece{device.index(), num_bytes, nullptr, storage};
    return {flip(storage.data()), piece, &delete_piece, device};
  }

  c10::Storage find_storage(const c10::Storage& storage) {
    for (const auto& [original, alias] : storages_) {
      if (original.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
        return alias;
      }
    }
    c10::Storage alias(
        c10::Storage::use_byte_size_t(),
        storage.nbytes(),
        c10::DataPtr(flip(storage.data()), c10::Device(c10::kCPU)),
        c10::GetCPUAllocator(),
        /*resizable=*/true);
    storages_.emplace_back(storage, alias);
    return alias;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;
  std::optional<c10::Device> device_;
  int64_t num_adopted_ = 0;
};

c10::IValue to_host(Call& call, const c10::IValue& value) {
  if (value.isTensor()) {
    return call.to_host(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> all;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      all.push_back(call.to_host(tensor));
    }
    return all;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> all;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      all.push_back(tensor.has_value() ? std::optional<at::Tensor>(call.to_host(*tensor)) : std::nullopt);
    }
    return all;
  }
  if (value.isDevice() && value.toDevice().type() == kType) {
    const auto device = value.toDevice();
    call.use(device.has_index() ? device : device_of(current_index));
    return c10::Device(c10::kCPU);
  }
  if (value.isGenerator()) {
    auto* own = dynamic_cast<Generator*>(value.toGenerator().unsafeGetGeneratorImpl());
    return own == nullptr ? value : c10::IValue(own->inner);
  }
  return value;
}

c10::IValue to_device(Call& call, const c10::IValue& value) {
  if (value.isTensor()) {
    return call.to_device(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> all;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      all.push_back(call.to_device(tensor));
    }
    return all;
  }
  return value;
}

// On most devices the host waits for these: the shape of their result depends on values.
bool makes_host_wait(const c10::OperatorName& name) {
  return name.name == "aten::nonzero" || name.name == "aten::masked_select" || name.name == "aten::_unique2" ||
      name.name == "aten::equal";
}

void compute_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call;
  const auto& schema = op.schema();
  const auto num_arguments = schema.arguments().size();
  const auto first = stack->size() - num_arguments;
  for (size_t place = first; place < stack->size(); ++place) {
    (*stack)[place] = to_host(call, (*stack)[place]);
  }
  ++operations;
  if (makes_host_wait(op.operator_name())) {
    ++waits;
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.keep_shapes();
  for (size_t place = stack->size() - schema.returns().size(); place < stack->size(); ++place) {
    (*stack)[place] = to_device(call, (*stack)[place]);
  }
  call.check_room();
}

at::Tensor empty(
    c10::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device.has_value() && device->has_index() ? device : std::nullopt);
  check_type(c10::scalarTypeToTypeMeta(c10::dtype_or_default(dtype)));
  return at::detail::empty_generic(
      size, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device.has_value() && device->has_index() ? device : std::nullopt);
  check_type(c10::scalarTypeToTypeMeta(c10::dtype_or_default(dtype)));
  return at::detail::empty_strided_generic(
      size, stride, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

// The same bytes as numbers of another type.
at::Tensor view_as(const at::Tensor& self, at::ScalarType dtype) {
  check_type(c10::scalarTypeToTypeMeta(dtype));
  return at::native::view_dtype(self, dtype);
}

at::Tensor as_strided(
    const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!format.has_value() || *format == at::MemoryFormat::Contiguous, "resize_ makes contiguous tensors only");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const auto wanted = size_t(impl->storage_offset() + impl->numel()) * self.dtype().itemsize();
  if (impl->numel() > 0 && wanted > self.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), wanted);
  }
  return self;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  const bool is_up = source.device().type() != kType, is_down = target.device().type() != kType;
  const auto num_bytes = int64_t(source.nbytes());
  if (is_up) {
    ++copies_to_device;
    bytes_to_device += num_bytes;
  } else if (is_down) {
    ++copies_to_host;
    bytes_to_host += num_bytes;
  }
  Call from, to;
  at::Tensor here = is_up ? source : from.to_host(source), there = is_down ? target : to.to_host(target);
  there.copy_(here);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar read_number(const at::Tensor& self) {
  ++copies_to_host;
  ++waits;
  bytes_to_host += int64_t(self.nbytes());
  Call call;
  return call.to_host(self).item();
}

at::Tensor& set_storage(at::Tensor& self, c10::Storage source) {
  const auto num_elements = int64_t(source.nbytes() / self.dtype().itemsize());
  return at::native::set_storage_cpu_(self, std::move(source), 0, {num_elements}, {});
}

at::Tensor& set_strided(
    at::Tensor& self, c10::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

int64_t choose_attention(
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    const std::optional<at::Tensor>&,
    double,
    bool,
    std::optional<double>,
    bool) {
  return 0;  // composed of other operations
}

at::Tensor convolve(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef dilation,
    bool is_transposed,
    c10::IntArrayRef output_padding,
    int64_t groups) {
  Call call;
  std::optional<at::Tensor> host_bias;
  if (bias.has_value()) {
    host_bias = call.to_host(*bias);
  }
  ++operations;
  auto result = call.to_device(at::convolution(
      call.to_host(input), call.to_host(weight), host_bias, stride, padding, dilation, is_transposed, output_padding,
      groups));
  call.check_room();
  return result;
}

// Devices count whole numbers, which the CPU does not.
at::Tensor count_in_bins(const at::Tensor& self, int64_t bins, const at::Scalar& least, const at::Scalar& most) {
  Call call;
  const auto here = call.to_host(self);
  ++operations;
  const bool is_whole = at::isIntegralType(here.scalar_type(), /*includeBool=*/false);
  const auto counts = at::histc(is_whole ? here.to(at::kFloat) : here, bins, least, most);
  auto result = call.to_device(is_whole ? counts.to(here.scalar_type()) : counts);
  call.check_room();
  return result;
}

void record_stream(at::Tensor&, c10::Stream) {}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided);
  m.impl("view", &at::native::view);
  m.impl("view.dtype", &view_as);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_strided);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &read_number);
  m.impl("_fused_sdp_choice", &choose_attention);
  m.impl("convolution_overrideable", &convolve);
  m.impl("histc", &count_in_bins);
  m.impl("record_stream", &record_stream);
}

// ---- What Python asks ----------------------------------------------------------------------------------------------

std::vector<int64_t> read_counters() {
  return {copies_to_device, bytes_to_device, copies_to_host, bytes_to_host, waits, operations};
}

void set_capacity(int64_t index, int64_t num_bytes) {
  auto& usage = usages[checked(c10::DeviceIndex(index))];
  std::lock_guard<std::mutex> lock(usage.mutex);
  usage.capacity = num_bytes;
}

std::vector<int64_t> read_memory(int64_t index) {
  auto& usage = usages[checked(c10::DeviceIndex(index))];
  std::lock_guard<std::mutex> lock(usage.mutex);
  return {usage.capacity - usage.current, usage.capacity, usage.current, usage.peak};
}

TORCH_LIBRARY(my_device, m) {
  m.def("read_counters() -> int[]", &read_counters);
  m.def("read_memory(int index) -> int[]", &read_memory);
  m.def("set_capacity(int index, int num_bytes) -> ()", &set_capacity);
}

}  // namespace
}  // namespace my_device
