/* data/stages.h -- the list of all stages, and their declarations.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_STAGES_H
#define DATA_STAGES_H

#include "data/data.h"

/* Calls the macro X for each stage. ch_dataset_decode accepts the stages of this list. */
/* clang-format off */
#define CH_STAGE_MAP(X)                                                                       \
    X(element) X(options)                                                                     \
    X(files) X(file_list) X(tfrecord) X(fixed_records) X(lines) X(csv) X(libsvm) X(npy) X(idx) \
    X(npz) X(examples) X(map) X(filter) X(take_while)                                         \
    X(tensors) X(slices) X(range) X(generator)                                                \
    X(take) X(skip) X(repeat) X(shard) X(concatenate) X(zip) X(in_turn) X(enumerate)          \
    X(shuffle) X(batch) X(unbatch) X(rebatch) X(split) X(padded_batch) X(bucket)              \
    X(select) X(sample) X(prefetch) X(cache) X(cache_file) X(flat_map) X(interleave) X(window)
/* clang-format on */

#define CH_STAGE_DECLARE(name) extern const ch_stage ch__stage_##name;
CH_STAGE_MAP(CH_STAGE_DECLARE)
#undef CH_STAGE_DECLARE

#endif
