#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/layer.h"
#include "loaders/tensor_source.h"
#include "models/rope.h"

namespace minfer {

// What a decoder-only model computes, whatever file it came from.
struct ModelSpec {
  std::string family = "llama";  // see models/families/family.h
  int64_t dim = 0;               // residual width
  int64_t vocab_size = 0;        // rows of the embedding
  int64_t trained_seq_len = 0;   // context of training, or what a RoPE scaling extends it to
  std::vector<LayerSpec> layers;
  std::vector<RopeSpec> ropes;  // that LayerSpec::rope is an index of
  EdgeSpec edges;
  bool tied_output = false;  // the output layer is the embedding
  // Of the output layer's rows, a rank of several has output_rows from output_begin on; 0: all.
  int64_t output_begin = 0, output_rows = 0;

  std::vector<std::string> warnings;  // what the tensors contradict, one line each

  int64_t n_output_rows() const { return output_rows > 0 ? output_rows : vocab_size; }
  int64_t n_layers() const { return static_cast<int64_t>(layers.size()); }
  const LayerSpec& layer(int64_t i) const { return layers[static_cast<size_t>(i)]; }
};

// From the headers, and from the few tensors that a flag is held against (settle_by_tensors).
// Everything that changes the mathematics is either understood or refused by name (Input, with the
// list of what is supported).
ModelSpec read_model_spec(const TensorSource& source);

// Keys that minfer knows nothing about, for a warning. In a GGUF file only keys of its architecture
// count.
std::vector<std::string> unknown_config_keys(const TensorSource& source, const ModelSpec& spec);

}  // namespace minfer
