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

/* Returns the checksum of the bytes so far, followed by `n` bytes at `data`. `crc` is the
 * checksum of the bytes so far; 0: there are none. */
uint32_t ch__crc32c(uint32_t crc, const void *data, size_t n);

/* Masks a checksum as TFRecord files and TensorBundles store it: rotates and adds a constant.
 * The mask is needed because a CRC of data that contains CRCs is weak. */
static inline uint32_t ch__crc32c_mask(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* For tests. Returns variant i of the implementation; 0 is the portable one. ch__crc32c uses
 * the last variant that the machine supports and the setting `simd` allows. Returns false if i
 * is past the last variant. *run is NULL if the machine does not support the variant. */
typedef uint32_t (*ch_crc32c_fn)(uint32_t crc, const void *data, size_t n);
bool ch__crc32c_variant(int i, const char **name, ch_crc32c_fn *run);

#endif
