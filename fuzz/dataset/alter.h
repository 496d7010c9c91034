/* fuzz/dataset/alter.h -- changes messages of datasets, positions and caches.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_DATASET_ALTER_H
#define FUZZ_DATASET_ALTER_H

#include "data/data.h"
#include "fuzz.h"

/* Change a field of a dataset, of a position or of a record of a cache. The result is still a
 * message. Return its size; 0 if the bytes are not such a message, or the result does not
 * fit. */
size_t alter_dataset(dice *d, uint8_t *data, size_t size, size_t max_size);
size_t alter_place(dice *d, uint8_t *data, size_t size, size_t max_size);
size_t alter_cached(dice *d, uint8_t *data, size_t size, size_t max_size);

#endif
