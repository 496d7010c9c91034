/* cohort/file.h -- files of records and arrays.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_FILE_H
#define COHORT_FILE_H

#include "cohort/value.h"

typedef enum ch_compression {
    CH_BY_NAME, /* .gz, .zst; all else is as it is */
    CH_UNCOMPRESSED,
    CH_GZIP,
    CH_ZLIB,
    CH_ZSTD
} ch_compression;

/* How a file is read. The limits are for compressed files: what decompresses to more than that
 * is refused, so that a small file cannot fill a machine. */
typedef struct ch_load_options {
    ch_compression compression;
    int            max_expansion; /* bytes from each byte of the file, once there are 16 MiB of
                                   * them; 0: 100. Files of zeros need more; INT_MAX: any */
    int64_t        max_bytes;     /* from the whole file; 0: 1 TiB */
} ch_load_options;

#endif
