#include "python/call_ends.h"

#include <cstring>

#include "base/collective_traits.h"

namespace nb = nanobind;

namespace tutti {

DataType dtype_of(const nb::dlpack::dtype& type) {
  struct Row {
    nb::dlpack::dtype_code code;
    int bits;
    DataType dtype;
  };
  using Code = nb::dlpack::dtype_code;
  static constexpr Row kRows[] = {{Code::Bool, 8, DataType::kBool},           {Code::UInt, 8, DataType::kUint8},
                                  {Code::UInt, 16, DataType::kUint16},        {Code::UInt, 32, DataType::kUint32},
                                  {Code::UInt, 64, DataType::kUint64},        {Code::Int, 8, DataType::kInt8},
                                  {Code::Int, 16, DataType::kInt16},          {Code::Int, 32, DataType::kInt32},
                                  {Code::Int, 64, DataType::kInt64},          {Code::Float, 16, DataType::kFloat16},
                                  {Code::Float, 32, DataType::kFloat32},      {Code::Float, 64, DataType::kFloat64},
                                  {Code::Bfloat, 16, DataType::kBfloat16},    {Code::Complex, 64, DataType::kComplex64},
                                  {Code::Complex, 128, DataType::kComplex128}};
  for (const Row& row : kRows) {
    if (static_cast<std::uint8_t>(row.code) == type.code && row.bits == type.bits && type.lanes == 1) return row.dtype;
  }
  throw_error(ErrorKind::kUnsupported, "this element type (DLPack code " + std::to_string(type.code) + ", " +
                                           std::to_string(type.bits) + " bits) is not supported");
}

nb::object with_strides(nb::handle object) {
  // NumPy's arrays, which say them, without being asked: small calls are made often.
  if (std::strcmp(Py_TYPE(object.ptr())->tp_name, "numpy.ndarray") == 0 || PyObject_CheckBuffer(object.ptr()) == 0) {
    return nb::borrow(object);
  }
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_RECORDS_RO) != 0) {
    PyErr_Clear();  // whoever reads it finds the same, and says so
    return nb::borrow(object);
  }
  const bool says_strides = view.ndim == 0 || view.strides != nullptr;
  PyBuffer_Release(&view);
  if (says_strides) return nb::borrow(object);
  auto whole = nb::steal<nb::object>(PyMemoryView_FromObject(object.ptr()));
  if (!whole.is_valid()) nb::raise_python_error();
  return whole;
}

namespace {

// One end of a call: `blocks` equal blocks in an array. An array that this rank does not need may be absent.
Blocks blocks_of(const std::optional<CallEnd>& end, const char* which, std::size_t blocks, DataType dtype,
                 std::optional<std::size_t>& count) {
  if (!end) return {};
  if (end->dtype != dtype) throw_error(ErrorKind::kInvalidArgument, "input and output differ in element type");
  if (end->count % blocks != 0) {
    throw_error(ErrorKind::kInvalidArgument, std::string("the ") + which + " has " + std::to_string(end->count) +
                                                 " elements, which are no " + std::to_string(blocks) + " equal blocks");
  }
  const std::size_t here = end->count / blocks;
  if (count.value_or(here) != here) {
    throw_error(ErrorKind::kInvalidArgument, "input and output disagree: a block of " + std::to_string(*count) +
                                                 " elements against one of " + std::to_string(here));
  }
  count = here;
  return Blocks::single(end->data, here * size_of(dtype));
}

}  // namespace

Call make_call(Collective collective, int size, std::optional<CallEnd> input, std::optional<CallEnd> output,
               ReduceOp op, int root) {
  // Most pass None for what only the root reads or writes, some an array of nothing. The root's own is refused later.
  if (collective == Collective::kScatter && input && output && input->count == 0) input.reset();
  if ((collective == Collective::kReduce || collective == Collective::kGather) && input && output &&
      output->count == 0) {
    output.reset();
  }
  Call call;
  call.collective = collective;
  call.root = root;
  if (collective == Collective::kBarrier) return call;
  if (!input && !output) throw_error(ErrorKind::kInvalidArgument, "this rank needs an input or an output");
  call.op = op;
  call.dtype = (input ? *input : *output).dtype;
  const auto n = static_cast<std::size_t>(size);
  std::optional<std::size_t> count;  // of a block; none may have elements
  call.input = blocks_of(input, "input", traits_of(collective).input_blocks ? n : 1, call.dtype, count);
  call.output = blocks_of(output, "output", traits_of(collective).output_blocks ? n : 1, call.dtype, count);
  call.count = *count;
  // What a rank does not pass it neither reads nor writes; its blocks still have the size of the call.
  if (!input) call.input.bytes = call.output.bytes;
  if (!output) call.output.bytes = call.input.bytes;
  return call;
}

}  // namespace tutti
