/* file/npy.h -- reads and writes .npy files of numpy: a header, then the elements of an array.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_NPY_H
#define FILE_NPY_H

#include "file/array.h"

/* Reads the header into *out. The reader is at the first element afterwards. DATA_LOSS: not a
 * .npy header, or a damaged one. UNIMPLEMENTED: the array cannot be a tensor (strings,
 * structures, complex numbers, more than CH_MAX_RANK axes); the message names the reason. */
CH_MUST_CHECK ch_status ch__npy_head(ch_reader *r, ch_array *out);

/* Writes the header and the elements of a tensor. UNIMPLEMENTED: numpy has no dtype for the
 * tensor's; the message names the dtype. */
CH_MUST_CHECK ch_status ch__npy_put(ch_writer *w, ch_tensor *t);

#endif
