/* fuzz/dataset/alter.h -- messages of datasets, places and caches, changed so that they are messages still.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_DATASET_ALTER_H
#define FUZZ_DATASET_ALTER_H

#include "data/data.h"
#include "fuzz.h"

/* The bytes of a dataset, a place or a record of a cache with something in them changed; 0: they were none, or have no
 * room. */
size_t alter_dataset(dice *d, uint8_t *data, size_t size, size_t max_size);
size_t alter_place(dice *d, uint8_t *data, size_t size, size_t max_size);
size_t alter_cached(dice *d, uint8_t *data, size_t size, size_t max_size);

#endif
