// Compiled plans on disk, and the thread that makes them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "algorithm/compiled/embedded.h"
#include "algorithm/compiled/native_kernel.h"
#include "algorithm/compiled/nvrtc.h"
#include "algorithm/compiled/plan_compiler.h"
#include "algorithm/compiled/plan_source.h"
#include "executor/executor_plans.h"
#include "plan/writer.h"
#include "support/no_threads.h"
#include "support/temporary_folder.h"
#include "tutti/config.h"
#include "tutti/error.h"

namespace tutti {
namespace {

std::string the_file(const std::string& folder) {
  return std::filesystem::directory_iterator(folder + "/kernels")->path();
}

TEST(KernelStore, KeepsWhatWasCompiled) {
  const test::TemporaryFolder folder;
  const std::string key = KernelStore::key("source", "sm_90", "13.0");
  EXPECT_FALSE(KernelStore(folder.path()).find(key));
  KernelStore(folder.path()).keep(key, std::string("cu\0bin", 6));
  EXPECT_EQ(KernelStore(folder.path()).find(key), std::string("cu\0bin", 6));
}

TEST(KernelStore, ANameForAllThatMatters) {
  const std::string key = KernelStore::key("source", "sm_90", "13.0");
  EXPECT_EQ(key, KernelStore::key("source", "sm_90", "13.0"));
  EXPECT_NE(key, KernelStore::key("other", "sm_90", "13.0"));
  EXPECT_NE(key, KernelStore::key("source", "sm_100", "13.0"));
  EXPECT_NE(key, KernelStore::key("source", "sm_90", "13.1"));
}

TEST(KernelStore, WhatIsDamagedCountsForNothing) {
  const test::TemporaryFolder folder;
  const KernelStore store(folder.path());
  const std::string key = KernelStore::key("source", "sm_90", "13.0");
  store.keep(key, "a cubin of some bytes");
  const std::string file = the_file(folder.path());
  std::string whole;
  {
    std::ifstream in(file, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto with = [&](const std::string& content) {
    std::ofstream(file, std::ios::binary) << content;
    return store.find(key);
  };
  std::string altered = whole;
  altered.back() ^= 1;
  EXPECT_FALSE(with(altered));
  EXPECT_FALSE(with(whole.substr(0, whole.size() - 1)));
  EXPECT_FALSE(with(whole.substr(0, 20)));
  EXPECT_FALSE(with(""));
  EXPECT_TRUE(with(whole));
  // An entry under another's name.
  std::filesystem::rename(file, folder.path() + "/kernels/" + KernelStore::key("x", "sm_90", "13.0") + ".cubin");
  EXPECT_FALSE(store.find(KernelStore::key("x", "sm_90", "13.0")));
}

// Updates of one release say the same version.
TEST(KernelStore, AnotherFileOfTheCompilerIsAnotherCompiler) {
  const test::TemporaryFolder folder;
  const auto time = std::filesystem::last_write_time(SLOW_NVRTC);
  const auto copy = [&](const std::string& name, const std::string& more, std::chrono::seconds later) {
    const std::string file = folder.path() + "/" + name;
    std::filesystem::copy_file(SLOW_NVRTC, file);
    std::ofstream(file, std::ios::binary | std::ios::app) << more;
    std::filesystem::last_write_time(file, time + later);
    return file;
  };
  using std::chrono::seconds;
  const Nvrtc one = Nvrtc::load(copy("one.so", "", seconds(0)));
  const auto key_of = [](const Nvrtc& nvrtc) { return KernelStore::key("source", "sm_90", nvrtc.identity()); };
  for (const std::string& other : {copy("longer.so", "x", seconds(0)), copy("later.so", "", seconds(1))}) {
    const Nvrtc loaded = Nvrtc::load(other);
    EXPECT_EQ(loaded.version(), one.version());
    EXPECT_NE(key_of(loaded), key_of(one)) << other;
  }
  EXPECT_EQ(key_of(Nvrtc::load(copy("moved.so", "", seconds(0)))), key_of(one));
}

TEST(PlanCompiler, WithoutACompilerTheRequestFailsAndSaysWhy) {
  PlanCompiler compiler("", "sm_90", "/no/such/libnvrtc.so");
  const auto code = compiler.request([] { return KernelText{}; });
  PlanCompiler::wait(*code);
  ASSERT_EQ(code->state(), CompiledPlanCode::State::kFailed);
  EXPECT_NE(code->why().find("NVRTC is not installed"), std::string::npos) << code->why();
  EXPECT_NE(code->why().find("/no/such/libnvrtc.so"), std::string::npos) << code->why();
}

// What waits when the compiler ends is told so, and nobody waits for good.
TEST(PlanCompiler, ItsEndEndsRequests) {
  std::shared_ptr<const CompiledPlanCode> codes[8];
  {
    PlanCompiler compiler("", "sm_90", SLOW_NVRTC);
    for (auto& code : codes) code = compiler.request([] { return KernelText{}; });
    PlanCompiler::wait(*codes[0]);
  }
  EXPECT_EQ(codes[0]->state(), CompiledPlanCode::State::kReady) << codes[0]->why();
  for (const auto& code : codes) EXPECT_NE(code->state(), CompiledPlanCode::State::kPending);
}

struct Pipe {
  Pipe() {
    if (::pipe(ends.data()) != 0) std::abort();
  }
  ~Pipe() {
    for (const int end : ends) ::close(end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void await() const {
    char byte = 0;
    if (::read(ends[0], &byte, 1) != 1) std::abort();
  }
  void wake() const {
    if (::write(ends[1], "!", 1) != 1) std::abort();
  }
  std::string read_end() const { return std::to_string(ends[0]); }
  std::string write_end() const { return std::to_string(ends[1]); }
  std::array<int, 2> ends{};
};

// While graphs keep what it has compiled, a group that is gone wants no more.
TEST(PlanCompiler, EndedItFinishesWhatIsUnderWayAndFailsTheRest) {
  const Pipe begun;
  PlanCompiler compiler("", "sm_90", SLOW_NVRTC);
  const auto first = compiler.request([&] { return KernelText{begun.write_end()}; });
  begun.await();
  int asked = 0;
  std::shared_ptr<const CompiledPlanCode> rest[4];
  for (auto& code : rest) {
    code = compiler.request([&] {
      ++asked;
      return KernelText{};
    });
  }
  compiler.end();
  EXPECT_EQ(first->state(), CompiledPlanCode::State::kReady) << first->why();
  const auto behind = compiler.request([] { return KernelText{}; });
  for (const auto& code : {rest[0], rest[1], rest[2], rest[3], behind}) {
    ASSERT_EQ(code->state(), CompiledPlanCode::State::kFailed);
    EXPECT_EQ(code->why(), "the group, or the process, has ended");
  }
  EXPECT_EQ(asked, 0);
}

TEST(PlanCompiler, WithoutAThreadItIsGivenUpAtOnce) {
  PlanCompiler compiler("", "sm_90", SLOW_NVRTC);
  {
    const test::NoThreads none;
    EXPECT_THROW(static_cast<void>(compiler.request([] { return KernelText{}; })), Error);
  }
  // Whatever has become possible: the next calls do not try it anew, nor complain.
  const auto code = compiler.request([] { return KernelText{}; });
  ASSERT_EQ(code->state(), CompiledPlanCode::State::kFailed);
  EXPECT_NE(code->why().find("compiled plans"), std::string::npos) << code->why();
}

// NVRTC registers its ends while it compiles, so they are the first that exit() would come to.
TEST(PlanCompiler, ExitWaitsForTheCompilationUnderWay) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exits = [] {
    int pipe[2] = {};
    if (::pipe(pipe) != 0) std::exit(1);
    auto* const never_destroyed = new PlanCompiler("", "sm_90", SLOW_NVRTC);
    static_cast<void>(never_destroyed->request([&] { return KernelText{std::to_string(pipe[1]), 0}; }));
    char byte = 0;
    std::exit(::read(pipe[0], &byte, 1) == 1 ? 0 : 1);
  };
  EXPECT_EXIT(exits(), testing::ExitedWithCode(0), "");
}

// What the next test's handlers look at.
std::shared_ptr<const CompiledPlanCode>* under_way = nullptr;
const Pipe* goes_on = nullptr;

// exit() comes while another thread is in the compiler's destructor, which waits for the compilation as well.
TEST(PlanCompiler, ExitWaitsForTheCompilationThatItsEndWaitsFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exits = [] {
    // Behind what waits, since it is registered before: the compilation is over, or the process ends with 67.
    std::atexit([] {
      if ((*under_way)->state() != CompiledPlanCode::State::kReady) ::_exit(67);
    });
    const auto& begun = *new Pipe;
    goes_on = new Pipe;
    auto* const compiler = new PlanCompiler("", "sm_90", SLOW_NVRTC);
    under_way = new std::shared_ptr<const CompiledPlanCode>(
        compiler->request([&] { return KernelText{begun.write_end() + " " + goes_on->read_end()}; }));
    begun.await();
    std::thread([=] { delete compiler; }).detach();
    // In its destructor it takes no more, and stays there until the compilation goes on.
    while (compiler->request([] { return KernelText{}; })->state() != CompiledPlanCode::State::kFailed) {
      std::this_thread::yield();
    }
    std::atexit([] { goes_on->wake(); });  // the first that exit() comes to
    std::exit(0);
  };
  EXPECT_EXIT(exits(), testing::ExitedWithCode(0), "");
}

// All headers that a plan's source includes, and those that they include, are in the library.
TEST(EmbeddedHeaders, AreComplete) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : compiled_plan_headers()) names.emplace_back(file.name);
  const auto has = [&](const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  PlanSourceRequest request;
  request.bytes = 64;
  std::string all = emit_plan(plan::write_plan(plan::packet_two_step_all_reduce(2), -1), request, "").text;
  all += "#include \"algorithm/cuda/native_call.cuh\"\n#include \"tutti/plugin/kernel.cuh\"\n";  // of kernels
  for (const EmbeddedFile& file : compiled_plan_headers()) all += file.text;
  int found = 0;
  for (std::size_t at = all.find("#include \""); at != std::string::npos;
       at = all.find("#include \"", at + 1), ++found) {
    const std::size_t begin = at + 10;
    EXPECT_TRUE(has(all.substr(begin, all.find('"', begin) - begin))) << all.substr(at, 60);
  }
  EXPECT_GT(found, 10);
}

// The compiler that TUTTI_NVRTC names, or that is found. Empty, and why not: there is none.
class WithNvrtc : public testing::Test {
 protected:
  void SetUp() override {
    const std::string named = config_from_environment().nvrtc;
    try {
      path_ = Nvrtc::load(named).path();
    } catch (const Error& error) {
      if (named.empty()) GTEST_SKIP() << error.what();
      FAIL() << error.what();
    }
  }
  std::string path_;
};

// What it makes of plans, and that it is not asked twice for the same.
TEST_F(WithNvrtc, CompilesPlans) {
  const test::TemporaryFolder folder;
  PlanSourceRequest request;
  request.bytes = 4096;
  const KernelText text = emit_plan(plan::write_plan(plan::packet_two_step_all_reduce(2), -1), request, "");
  std::string first;
  for (int round = 0; round < 2; ++round) {
    PlanCompiler compiler(folder.path(), "sm_90", path_);
    const auto code = compiler.request([&] { return text; });
    PlanCompiler::wait(*code);
    ASSERT_EQ(code->state(), CompiledPlanCode::State::kReady) << code->why();
    EXPECT_EQ(code->workers(), text.workers);
    EXPECT_EQ(code->cubin().substr(1, 3), "ELF");
    if (round == 0) first = code->cubin();
    EXPECT_EQ(code->cubin(), first);
  }
}

KernelAlgorithm kernel_of(const std::string& text, const std::string& function, Collective collective) {
  KernelAlgorithm kernel;
  kernel.function = function;
  kernel.collective = collective;
  kernel.threads = 256;
  auto source = std::make_shared<KernelSource>();
  source->file = "of a \"test\".cu";
  source->text = text;
  kernel.source = source;
  return kernel;
}

std::string test_kernels() {
  std::ifstream in(TEST_KERNELS);
  return {std::istreambuf_iterator<char>(in), {}};
}

// All kernels of the tests, with their headers; what was compiled is not compiled again.
TEST_F(WithNvrtc, CompilesKernels) {
  const test::TemporaryFolder folder;
  for (const auto& [function, collective] : {std::pair{"create_all_gather", Collective::kAllGather},
                                             {"create_broadcast", Collective::kBroadcast},
                                             {"create_all_reduce", Collective::kAllReduce}}) {
    const KernelAlgorithm kernel = kernel_of(test_kernels(), function, collective);
    const std::string cubin = compile_native(kernel, "sm_90", folder.path(), path_);
    EXPECT_EQ(cubin.substr(1, 3), "ELF") << function;
    for (const std::string& entry : native_entries(kernel)) {
      EXPECT_NE(cubin.find(entry), std::string::npos) << function << " has no " << entry;
    }
    EXPECT_EQ(compile_native(kernel, "sm_90", folder.path(), path_), cubin);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path() + "/kernels"), {}), 3);
}

// What an author sees of a mistake: the compiler's words, with the file and the line.
TEST_F(WithNvrtc, TellsWhatIsWrongWithAKernel) {
  const KernelAlgorithm kernel = kernel_of(
      "#include <tutti/plugin/kernel.cuh>\n#include \"own.cuh\"\nint x = unknown;\n", "create", Collective::kAllGather);
  auto source = std::make_shared<KernelSource>(*kernel.source);
  KernelAlgorithm with_header = kernel;
  source->headers["own.cuh"] = "#if !defined(WANTED)\n#error not wanted\n#endif\n";
  source->options = {"-DWANTED=1"};
  with_header.source = source;
  for (const auto& [tried, said] : {std::pair(kernel, "cannot open source file \"own.cuh\""),
                                    std::pair(with_header, "of a \"test\".cu(3): error")}) {
    try {
      static_cast<void>(compile_native(tried, "sm_90", "", path_));
      ADD_FAILURE() << "compiled, without " << said;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find("not wanted"), std::string::npos) << error.what();
    }
  }
}

// Without the compiler: what it would be given has an entry for each reduction, and of what only moves data, one.
TEST(NativeKernelText, HasAnEntryForEachReduction) {
  const std::string sum = native_text(kernel_of("THE SOURCE", "create", Collective::kAllReduce));
  const std::string gather = native_text(kernel_of("THE SOURCE", "create", Collective::kAllGather));
  EXPECT_EQ(native_entries(kernel_of("", "create", Collective::kReduceScatter)).size(), 4u);
  for (const char* said : {"#line 1 \"of a \\\"test\\\".cu\"\nTHE SOURCE\n", "ReduceAny, tutti::kernels::create>",
                           "__launch_bounds__(256 + tutti::cuda::kControlThreads, 1)"}) {
    EXPECT_NE(sum.find(said), std::string::npos) << said << "\n" << sum;
  }
  EXPECT_EQ(gather.find("ReduceAny"), std::string::npos);
}

}  // namespace
}  // namespace tutti
