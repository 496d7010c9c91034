/* file/npy.h -- numpy's .npy: a header that says what the array is, and its elements.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_NPY_H
#define FILE_NPY_H

#include "file/array.h"

/* Reads the header; the reader then stands at the first element. DATA_LOSS if it is none;
 * UNIMPLEMENTED, by name, for what tensors do not hold: strings, structures, complex numbers, more
 * than CH_MAX_RANK axes. */
CH_MUST_CHECK ch_status ch__npy_head(ch_reader *r, ch_array *out);

/* Header and elements of a tensor. UNIMPLEMENTED, by name, for what numpy has no dtype for. */
CH_MUST_CHECK ch_status ch__npy_put(ch_writer *w, ch_tensor *t);

#endif
