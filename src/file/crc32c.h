/* file/crc32c.h -- CRC-32C (Castagnoli), the checksum of records and checkpoints.
 *
 *     ch__crc32c(0, "123456789", 9) == 0xe3069283
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_CRC32C_H
#define FILE_CRC32C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* That of `n` more bytes, where `crc` is the one of those before them; 0: there are none. */
uint32_t ch__crc32c(uint32_t crc, const void *data, size_t n);

/* As TFRecord files and TensorBundles store it: turned and shifted, so that data which holds
 * checksums of itself still has a good one. */
static inline uint32_t ch__crc32c_mask(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* The ways to compute it, the plain one first; the last that the machine can run is used. For
 * tests: false past the last; *run is NULL where the machine cannot. */
typedef uint32_t (*ch_crc32c_fn)(uint32_t crc, const void *data, size_t n);
bool ch__crc32c_way(int i, const char **name, ch_crc32c_fn *run);

#endif
