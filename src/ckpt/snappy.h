/* ckpt/snappy.h -- decodes snappy blocks.   SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_SNAPPY_H
#define CKPT_SNAPPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the decoded length that a block states. Returns false if the block is damaged. */
bool ch__snappy_bytes(const void *from, size_t n, uint32_t *out);
/* Decodes a block of untrusted bytes into `to`, which has room for the stated length. Returns
 * false if the block is damaged or does not decode to exactly that length. */
bool ch__snappy_decode(const void *from, size_t n, void *to);

#endif
