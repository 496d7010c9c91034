/* file/idx.h -- IDX, the format of MNIST.   SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_IDX_H
#define FILE_IDX_H

#include "file/array.h"

/* Reads the header; the reader then stands at the first element. DATA_LOSS if it is none. */
CH_MUST_CHECK ch_status ch__idx_head(ch_reader *r, ch_array *out);

#endif
