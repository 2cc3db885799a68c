#include "python/buffer_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/cpu/arena.h"
#include "interpreter/without_python.h"
#include "python/call_ends.h"
#include "tutti/cuda/memory.h"
#include "tutti/device_communicator.h"
#include "tutti/error.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tutti {
namespace {

// Memory of this process's arena. Freed with the object and all arrays of it.
class ArenaBuffer {
 public:
  explicit ArenaBuffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) throw_error(ErrorKind::kInvalidArgument, "a buffer has at least one byte");
    arena_ = process_arena();
    if (arena_ == nullptr) {
      throw_error(ErrorKind::kExhausted, "there is no arena of mapped memory here: `tutti doctor` says why");
    }
    data_ = arena_->allocate(bytes);
    if (data_ == nullptr) {
      throw_error(ErrorKind::kExhausted,
                  "the arena has no room for " + std::to_string(bytes) + " bytes: TUTTI_ARENA_BYTES sets its size");
    }
  }
  ~ArenaBuffer() { arena_->deallocate(data_); }
  ArenaBuffer(const ArenaBuffer&) = delete;
  ArenaBuffer& operator=(const ArenaBuffer&) = delete;

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  int device() const noexcept { return 0; }
  static constexpr int kDeviceType = nb::device::cpu::value;

 private:
  Arena* arena_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_;
};

// Memory of a GPU. Freed likewise.
class DeviceBuffer {
 public:
  DeviceBuffer(std::size_t bytes, int device)
      : memory_(make_cuda_memory(bytes, device)),
        bytes_(bytes),
        device_(device >= 0 ? device : device_of("cuda", memory_.get()).value_or(0)) {}
  ~DeviceBuffer() {
    // It waits for the device, where a kernel may wait for one that another thread of Python's has yet to launch.
    const WithoutPython released;
    memory_.reset();
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const noexcept { return memory_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }
  int device() const noexcept { return device_; }
  static constexpr int kDeviceType = nb::device::cuda::value;

  // From memory of the host or of a GPU.
  void copy(std::uintptr_t address, std::size_t bytes) {
    if (bytes > bytes_) throw_error(ErrorKind::kInvalidArgument, "more bytes than the buffer has");
    const WithoutPython released;
    copy_cuda_memory(memory_.get(), reinterpret_cast<const void*>(address), bytes);
  }

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_;
  int device_;
};

nb::dlpack::dtype dlpack_type(const std::string& name) {
  using Code = nb::dlpack::dtype_code;
  struct Row {
    const char* name;
    Code code;
    std::uint8_t bits;
  };
  // 8-bit floats have codes in new versions of DLPack only: as bytes, to be viewed as what they are.
  static constexpr Row kRows[] = {
      {"bool", Code::Bool, 8},        {"uint8", Code::UInt, 8},         {"uint16", Code::UInt, 16},
      {"uint32", Code::UInt, 32},     {"uint64", Code::UInt, 64},       {"int8", Code::Int, 8},
      {"int16", Code::Int, 16},       {"int32", Code::Int, 32},         {"int64", Code::Int, 64},
      {"float16", Code::Float, 16},   {"float32", Code::Float, 32},     {"float64", Code::Float, 64},
      {"bfloat16", Code::Bfloat, 16}, {"complex64", Code::Complex, 64}, {"complex128", Code::Complex, 128}};
  for (const Row& row : kRows) {
    if (name == row.name) return {static_cast<std::uint8_t>(row.code), row.bits, 1};
  }
  throw_error(ErrorKind::kUnsupported, "DLPack has no element type '" + name + "': take uint8 and view it as another");
}

template <class Buffer>
nb::object to_dlpack(nb::handle_t<Buffer> self, const std::string& dtype, std::vector<std::size_t> shape,
                     const std::vector<std::int64_t>& strides) {
  const Buffer& buffer = *nb::inst_ptr<Buffer>(self);
  const nb::dlpack::dtype type = dlpack_type(dtype);
  const std::size_t element = type.bits / 8;
  if (shape.empty()) shape = {buffer.bytes() / element};
  if (!strides.empty() && strides.size() != shape.size()) {
    throw_error(ErrorKind::kInvalidArgument, "shape and strides differ in length");
  }
  // In bytes: how many the elements have, each counted once, and how many there are up to the end of the last one.
  std::int64_t all = static_cast<std::int64_t>(element), end = all;
  bool countable = true;
  const auto times = [&countable](std::int64_t a, std::int64_t b) {
    std::int64_t product = 0;
    countable = countable && !__builtin_mul_overflow(a, b, &product);
    return product;
  };
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (!strides.empty() && strides[d] < 0) throw_error(ErrorKind::kInvalidArgument, "strides are not negative here");
    if (shape[d] == 0) throw_error(ErrorKind::kInvalidArgument, "the shape has a dimension of 0");
    const std::int64_t stride = strides.empty() ? all : times(strides[d], static_cast<std::int64_t>(element));
    const auto length = static_cast<std::int64_t>(shape[d]);  // negative where it is no int64, and so not countable
    countable = countable && length > 0 && !__builtin_add_overflow(end, times(length - 1, stride), &end);
    all = times(all, length);
  }
  if (!countable || static_cast<std::size_t>(end) > buffer.bytes()) {
    throw_error(ErrorKind::kInvalidArgument, "this shape needs " +
                                                 (countable ? std::to_string(end) : std::string("more than 2^63")) +
                                                 " bytes, the buffer has " + std::to_string(buffer.bytes()));
  }
  const nb::ndarray<> array(buffer.data(), shape.size(), shape.data(), self, strides.empty() ? nullptr : strides.data(),
                            type, Buffer::kDeviceType, buffer.device());
  return nb::cast(array);
}

// An array of whoever has DLPack, in main memory. Keeps what it was exported with: of who makes its memory as it is
// exported, nobody else does.
struct HostArray {
  std::uintptr_t address;
  std::size_t bytes;
  bool contiguous;
  bool writeable;
  nb::ndarray<> held;
};

// Nothing of what is none. Only the object itself knows whether its memory may be written: NumPy, which is older where
// it has to be, takes all arrays by DLPack for read-only.
std::optional<HostArray> host_array(nb::handle object) {
  const auto found = [](const auto& array, bool writeable) {
    std::int64_t step = 1;
    bool contiguous = true;
    for (std::size_t d = array.ndim(); d-- > 0;) {
      if (array.shape(d) != 1 && array.size() != 0 && array.stride(d) != step) contiguous = false;
      step *= static_cast<std::int64_t>(array.shape(d));
    }
    return HostArray{reinterpret_cast<std::uintptr_t>(array.data()), array.nbytes(), contiguous, writeable,
                     nb::ndarray<>(array)};
  };
  const nb::object readable = with_strides(object);
  if (nb::ndarray<nb::device::cpu> array; nb::try_cast(readable, array, false)) return found(array, true);
  PyErr_Clear();  // of what was tried
  if (nb::ndarray<nb::ro, nb::device::cpu> array; nb::try_cast(readable, array, false)) return found(array, false);
  PyErr_Clear();
  return std::nullopt;
}

// What both have.
template <class Buffer>
nb::class_<Buffer> bind_buffer(nb::module_& m, const char* name) {
  nb::class_<Buffer> buffer(m, name);
  buffer.def_prop_ro("address", [](const Buffer& b) { return reinterpret_cast<std::uintptr_t>(b.data()); })
      .def_prop_ro("bytes", &Buffer::bytes)
      .def_prop_ro("device", &Buffer::device)
      .def("to_dlpack", &to_dlpack<Buffer>, "dtype"_a, "shape"_a, "strides"_a);
  return buffer;
}

}  // namespace

void bind_buffers(nb::module_& m) {
  nb::class_<HostArray>(m, "HostArray")
      .def_ro("address", &HostArray::address)
      .def_ro("bytes", &HostArray::bytes)
      .def_ro("contiguous", &HostArray::contiguous)
      .def_ro("writeable", &HostArray::writeable);
  m.def("host_array", &host_array, "object"_a);
  bind_buffer<ArenaBuffer>(m, "ArenaBuffer")
      .def(nb::init<std::size_t>(), "bytes"_a)
      .def("numpy", [](nb::handle_t<ArenaBuffer> self) {
        const ArenaBuffer& buffer = *nb::inst_ptr<ArenaBuffer>(self);
        const std::size_t bytes = buffer.bytes();
        return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(buffer.data(), {bytes}, self);
      });
  bind_buffer<DeviceBuffer>(m, "DeviceBuffer")
      .def(nb::init<std::size_t, int>(), "bytes"_a, "device"_a, nb::call_guard<WithoutPython>())
      .def("copy", &DeviceBuffer::copy, "address"_a, "bytes"_a);
}

}  // namespace tutti
