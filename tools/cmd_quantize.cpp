#include <limits.h>

#include <filesystem>

#include "loaders/checksum.h"
#include "loaders/compressed_tensors.h"
#include "loaders/earlier_output.h"
#include "loaders/file.h"
#include "loaders/quantized_dir.h"
#include "loaders/side_files.h"
#include "models/hf_config_text.h"
#include "models/quantize/gguf_export.h"
#include "tools/commands.h"
#include "tools/device.h"
#include "tools/model_path.h"
#include "tools/process.h"
#include "tools/progress.h"
#include "tools/quantize_calibration.h"
#include "tools/quantize_output.h"
#include "tools/quantize_report.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = 16 << 20;
const std::vector<std::string> kStoredTypes = {"int4", "int8", "f16", "bf16"};

struct CommandOptions {
  std::string input, output;
  std::string type, group, method = "mse";
  std::string calibration;  // text file
  std::string head_type, embed_type;
  std::vector<std::string> rules;
  OutputForm form;
  bool asymmetric = false, dry_run = false, force = false, strict = false;
  bool allow_requantize = false;
  int64_t n_threads = 0;
};

StoredType stored_type(const std::string& option, const std::string& name) {
  if (name == "int4") return StoredType::Int4;
  if (name == "int8") return StoredType::Int8;
  if (name == "f16") return StoredType::F16;
  MINFER_REQUIRE(Usage, name == "bf16", option, ": ", shortened(name),
                 " is none of int4, int8, f16, bf16");
  return StoredType::BF16;
}

QuantizeMethod method_of(const CommandOptions& options) {
  if (options.method == "rtn") return QuantizeMethod::Rtn;
  if (options.method == "rtn16") return QuantizeMethod::Rtn16;
  return QuantizeMethod::Mse;  // gptq: the scales' part of it
}

std::string type_name(const CommandOptions& options) {
  return options.type.empty() ? "int4" : options.type;
}

std::string group_name(const CommandOptions& options) {
  if (!options.group.empty()) return options.group;
  return type_name(options) == "int4" ? "64" : "row";
}

DType gguf_type(const CommandOptions& options) {
  const std::string& name = options.form.gguf;
  return name == "f16" ? DType::F16 : name == "q8_0" ? DType::Q8_0 : DType::Q4_0;
}

QuantizeOptions quantize_options(const CommandOptions& options) {
  QuantizeOptions to;
  if (!options.form.gguf.empty()) {
    const bool is_set = options.asymmetric || !options.group.empty() || !options.rules.empty() ||
                        !options.head_type.empty() || !options.embed_type.empty() ||
                        !options.type.empty() || options.form.single_file;
    MINFER_REQUIRE(Usage, !is_set,
                   "--gguf: a type of GGUF has its own groups; --type, --group, --asymmetric, "
                   "--tensor, --head-type, --embed-type and --single-file are not for it");
    return to;
  }
  to.type = stored_type("--type", type_name(options));
  const std::string group = group_name(options);
  to.group = group == "row" ? 0 : parse_integer("--group", group, 1, 1 << 20);
  MINFER_REQUIRE(Usage, !options.asymmetric || type_name(options) == "int4",
                 "--asymmetric: int8 is symmetric, --type int4 may be either");
  to.asymmetric = options.asymmetric;
  if (!options.head_type.empty()) to.head = stored_type("--head-type", options.head_type);
  if (!options.embed_type.empty()) to.embedding = stored_type("--embed-type", options.embed_type);
  for (const std::string& rule : options.rules) {
    const size_t equals = rule.rfind('=');
    MINFER_REQUIRE(Usage, equals != std::string::npos && equals > 0, "--tensor ", shortened(rule),
                   ": expected PATTERN=TYPE");
    to.rules.push_back({rule.substr(0, equals), stored_type("--tensor", rule.substr(equals + 1))});
  }
  return to;
}

// "-int4-g64" behind the name of the input.
std::string default_output(const CommandOptions& options, const std::string& input) {
  std::error_code error;
  fs::path path = fs::absolute(input, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = fs::is_directory(path, error) ? path.filename() : path.stem();
  if (!options.form.gguf.empty()) {
    return (path.parent_path() / cat(name, '-', options.form.gguf, ".gguf")).string();
  }
  const std::string group = group_name(options);
  return (path.parent_path() / cat(name, '-', type_name(options), '-', group == "row" ? "" : "g",
                                   group, options.form.single_file ? ".safetensors" : ""))
      .string();
}

// A directory that has a configuration and no weights.
bool is_config_alone(const fs::path& input) {
  return path_exists(input / "config.json") && !path_exists(input / "model.safetensors") &&
         !path_exists(input / "model.safetensors.index.json");
}

std::string config_text(const TensorSource& source, const QuantizePlan& plan) {
  if (source.key_style == KeyStyle::HuggingFace) {
    return read_whole_file(fs::path(source.path) / "config.json", kMaxConfigBytes);
  }
  DType dtype = DType::F16;  // of the embedding, where that is not quantized
  for (const TensorEntry& tensor : plan.outputs()) {
    if (tensor.shape.rank == 2 && !tensor.quant) dtype = tensor.dtype;
  }
  return hf_config_text(plan.spec, dtype);
}

// The types and bytes that the output's format has.
void choose_stored(QuantizePlan& plan, const CommandOptions& options) {
  if (!options.form.gguf.empty()) return choose_gguf_types(plan, gguf_type(options));
  const CompressedTensorsLayout layout(plan.outputs());
  for (PlannedTensor& tensor : plan.tensors) {
    tensor.output.file_bytes = static_cast<uint64_t>(layout.stored_bytes(tensor.output));
  }
}

void require_no_fallback(const QuantizePlan& plan) {
  for (const PlannedTensor& tensor : plan.tensors) {
    MINFER_REQUIRE(Input, !tensor.fallback, "tensor ", tensor.output.name, ": ",
                   tensor.output.shape, " is no whole groups; without --strict it becomes int8");
  }
}

// The tokenizer of a GGUF file, as one without tensors has it.
Metadata tokenizer_keys(const TensorSource& source) {
  Metadata keys;
  if (source.key_style != KeyStyle::Gguf || !source.metadata.has("tokenizer.ggml.model"))
    return keys;
  for (const auto& [key, value] : source.metadata.all()) {
    if (key.starts_with("tokenizer.") || key == "general.architecture") keys.set(key, value);
  }
  return keys;
}

void warn(const TensorSource& source, const QuantizePlan& plan, const CommandOptions& options) {
  for (const std::string& warning : source.warnings) log_warning(warning);
  for (const std::string& warning : plan.spec.warnings) log_warning(warning);
  if (source.key_style == KeyStyle::HuggingFace) {
    for (const std::string& line : side_files(source.path).left_out) log_warning(line);
  }
  for (const std::string& name : plan.unused) {
    log_warning(cat("tensor ", shortened(name), " is not used by the model and left out"));
  }
  if (!options.form.gguf.empty()) return;
  if (source.key_style == KeyStyle::Gguf &&
      (options.form.single_file || !source.metadata.has("tokenizer.ggml.model"))) {
    log_warning(
        "the output has no tokenizer, its source is no directory; --tokenizer of the other "
        "commands gives one");
  }
  if (plan.spec.tied_output && plan.tensors.front().output.quant) {
    log_warning("the tied pair is quantized: minfer reads that, transformers does not");
  }
}

// Sizes as planned; errors come with the run.
std::vector<QuantizedTensorReport> planned(const QuantizePlan& plan) {
  std::vector<QuantizedTensorReport> tensors;
  for (const PlannedTensor& tensor : plan.tensors) tensors.push_back(planned_report(tensor));
  return tensors;
}

void print(const QuantizeReport& report, Context& context) {
  if (context.common.json) return context.out.line(to_json(report, /*with_run=*/true));
  context.out.text(to_text(report, context.common.verbose));
}

QuantizeReport report_of(const std::string& input, const std::string& format,
                         const CommandOptions& options) {
  fs::path path = fs::path(input).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string group = group_name(options);
  QuantizeReport report;
  report.source = shortened(path.filename().string(), NAME_MAX);
  report.source_format = format;
  if (!options.form.gguf.empty()) {
    report.scheme = "GGUF " + options.form.gguf;
    return report;
  }
  report.scheme = cat(type_name(options), group == "row" ? " " : " g", group,
                      options.asymmetric ? " asymmetric " : " ", options.method);
  return report;
}

std::unique_ptr<ModelWriter> make_writer(const TensorSource& source, const QuantizePlan& plan,
                                         const std::string& output, const QuantizeReport& report,
                                         const CommandOptions& options, Progress& checking) {
  const std::string source_dir = source.key_style == KeyStyle::HuggingFace ? source.path : "";
  if (!options.form.gguf.empty()) {
    return make_gguf_model_writer(source, plan,
                                  {.output = output,
                                   .replace = options.force,
                                   .type = gguf_type(options),
                                   .tokenizer_source = source_dir});
  }
  return make_quantized_dir_writer(
      {.output = output,
       .single_file = options.form.single_file,
       .replace = options.force,
       .tensors = plan.outputs(),
       .config = config_text(source, plan),
       .tied_output = plan.spec.tied_output,
       .source_dir = source_dir,
       .tokenizer = options.form.single_file ? Metadata() : tokenizer_keys(source),
       .metadata = {{"minfer.scheme", report.scheme},
                    {"minfer.source", report.source},
                    {"minfer.calibration", report.calibration}},
       .progress = checking.callback()});
}

// The output is there: what goes wrong from here on costs nothing that was written.
void print_finished(QuantizeReport& report, const std::string& output, double seconds,
                    Context& context) try {
  report.run = {output, seconds};
  print(report, context);
  context.out.close();
} catch (const StdoutClosed&) {
  log_warning("the report is not printed: stdout is closed");
} catch (const std::exception& e) {
  log_warning(cat("the report is not printed: ", e.what()));
}

void write(const TensorSource& source, const QuantizePlan& plan, const std::string& output,
           const CommandOptions& options, Context& context) {
  const double start = now_seconds();
  Progress quantizing("quantizing", context.common.quiet);
  Progress checking("checking", context.common.quiet);
  const int n_threads = thread_count({.n_threads = options.n_threads});
  const bool is_gptq = options.method == "gptq";
  const std::string text = is_gptq ? read_calibration_text(options.calibration) : "";
  QuantizeReport report = report_of(source.path, source.format, options);
  if (is_gptq) report.calibration = "sha256 " + sha256_hex(text);
  const std::unique_ptr<ModelWriter> writer =
      make_writer(source, plan, output, report, options, checking);
  const std::unique_ptr<LoadedCalibration> loaded =
      is_gptq ? load_calibration(source, text, n_threads) : nullptr;
  report.tensors =
      quantize_model(source, plan, method_of(options), n_threads, *writer, quantizing.callback(),
                     loaded ? loaded->calibration.get() : nullptr);
  const std::vector<std::string> warnings =
      writer->finish(to_json(report, /*with_run=*/false) + '\n');
  for (const std::string& warning : warnings) log_warning(warning);
  print_finished(report, output, now_seconds() - start, context);
}

void say_what_is_replaced(const std::string& output, const CommandOptions& options) {
  const std::string earlier = earlier_output(output, options.form.kind());
  if (!earlier.empty()) log_info(cat(shown_path(output), ": ", earlier, ", is replaced"));
}

void run_quantize(CommandOptions& options, Context& context) {
  MINFER_REQUIRE(Usage, !options.input.empty(), "no model to quantize");
  MINFER_REQUIRE(Usage, (options.method == "gptq") == !options.calibration.empty(),
                 options.calibration.empty() ? "--method gptq needs a text: --calibration FILE"
                                             : "--calibration is for --method gptq");
  options.form = form_of_output(options.output, options.form);
  const QuantizeOptions quantize = quantize_options(options);
  const std::string input = find_model(options.input);
  if (options.dry_run && is_config_alone(input)) {
    QuantizePlan plan = plan_quantization(fs::path(input) / "config.json", quantize);
    choose_stored(plan, options);
    QuantizeReport report = report_of(input, "config.json", options);
    report.tensors = planned(plan);
    return print(report, context);
  }
  const std::string output =
      options.output.empty() ? default_output(options, input) : options.output;
  require_apart(input, output);
  const std::unique_ptr<TensorSource> source = open_source(input);
  QuantizePlan plan = plan_quantization(*source, quantize);
  choose_stored(plan, options);
  if (!options.allow_requantize) require_not_quantized_twice(plan);
  warn(*source, plan, options);
  if (options.strict) require_no_fallback(plan);
  if (!options.dry_run) {
    if (options.force) say_what_is_replaced(output, options);
    return write(*source, plan, output, options, context);
  }
  QuantizeReport report = report_of(input, source->format, options);
  report.tensors = planned(plan);
  print(report, context);
}

}  // namespace

void add_quantize_command(CommandNode& root, Context& context) {
  auto options = std::make_shared<CommandOptions>();
  CommandNode& command =
      root.add_command("quantize", "Fewer bits for the weights of a model",
                       "  minfer quantize Llama-2-7b-hf\n"
                       "  minfer quantize Llama-2-7b-hf out --type int4 --group 128 --asymmetric\n"
                       "  minfer quantize model.gguf out --tensor '*down_proj*=int8'\n"
                       "  minfer quantize Llama-2-7b-hf model.gguf --gguf q8_0\n"
                       "  minfer quantize Llama-2-7b-hf --dry-run",
                       [options, &context] { run_quantize(*options, context); });
  command.add_text("IN", options->input, "IN", "Directory, .gguf, llama2.c .bin, or smollm2");
  command.add_text(
      "OUT", options->output, "OUT",
      "Directory, .gguf or .safetensors to write; beside IN, named after it, where not "
      "given");
  command.add_choice("--type", options->type, {"int4", "int8"}, "Type of the linear layers; int4");
  command.add_choice("--group", options->group, {"32", "64", "128", "row"},
                     "Columns that share a scale; int4: 64, int8: row");
  command.add_choice(
      "--method", options->method, {"rtn", "rtn16", "mse", "gptq"},
      "rtn: scale max|w|/7; rtn16: all 16 codes; mse: least squared error; gptq: mse "
      "with error feedback by a text");
  command.add_text("--calibration", options->calibration, "FILE", "Text for gptq");
  command.add_flag("--asymmetric", options->asymmetric, "int4 with a zero-point in each group");
  command.add_repeatable("--tensor", options->rules, "PATTERN=TYPE",
                         "int4, int8, f16 or bf16 for tensors whose name fits (* and ?)");
  command.add_choice("--head-type", options->head_type, kStoredTypes,
                     "Type of the output layer; int8, of a tied pair the source's");
  command.add_choice("--embed-type", options->embed_type, kStoredTypes,
                     "Type of the embedding; int8, of a tied pair the source's");
  command.add_choice("--gguf", options->form.gguf, {"f16", "q8_0", "q4_0"},
                     "Write a GGUF file for llama.cpp and others instead of a directory");
  command.add_flag("--single-file", options->form.single_file,
                   "One .safetensors file with configuration and tokenizer inside");
  command.add_flag("--dry-run", options->dry_run, "Print the sizes and write nothing");
  command.add_flag("--force", options->force,
                   "Replace an earlier output of minfer; never anything else");
  command.add_flag("--allow-requantize", options->allow_requantize,
                   "Quantize matrices that have 4 bits already, which costs accuracy twice");
  command.add_flag("--strict", options->strict,
                   "Refuse tensors whose rows are no whole groups, which become int8 otherwise");
  command.add_integer("-t,--threads", options->n_threads, 0, 1024,
                      "Threads; 0: one for each core that the process may use");
  command.need({"--calibration"}, {"--method=gptq"});
  command.exclude({"--gguf"}, {"--type", "--group", "--asymmetric", "--tensor", "--head-type",
                               "--embed-type", "--single-file"});
}

}  // namespace minfer
