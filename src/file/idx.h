/* file/idx.h -- reads IDX files, the format of MNIST.   SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_IDX_H
#define FILE_IDX_H

#include "file/array.h"

/* Reads the header into *out. The reader is at the first element afterwards. DATA_LOSS: not an
 * IDX header. UNIMPLEMENTED: more than CH_MAX_RANK axes. */
CH_MUST_CHECK ch_status ch__idx_head(ch_reader *r, ch_array *out);

#endif
