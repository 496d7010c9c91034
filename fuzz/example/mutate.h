/* fuzz/example/mutate.h -- the mutators of fuzz/example.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_EXAMPLE_MUTATE_H
#define FUZZ_EXAMPLE_MUTATE_H

#include "fuzz.h"

/* Change the example in `data`. Return its new size; 0 if that is not possible. */
size_t mutate_within(dice *d, uint8_t *data, size_t size, size_t max_size);
size_t mutate_grow(dice *d, uint8_t *data, size_t size, size_t max_size);

#endif
