/* graph/codec.h -- what encoding and decoding agree on.   SPDX-License-Identifier: Apache-2.0
 */
#ifndef GRAPH_CODEC_H
#define GRAPH_CODEC_H

/* Version of the message; doc/graph-format.md says when it changes. */
#define CH_CODEC_FORMAT 1

/* A graph beyond these is refused on both sides (PROMISES S7, S9). */
#define CH_CODEC_MAX_DEPTH   64        /* of bodies in bodies */
#define CH_CODEC_MAX_CALLS   (1 << 20) /* with those of bodies */
#define CH_CODEC_MAX_INPUTS  (1 << 14) /* of one call */
#define CH_CODEC_MAX_SYMBOLS (1 << 16)
#define CH_CODEC_MAX_NAME    4096 /* bytes, of anything that has a name */

/* What decoding may take: this much, and twice the bytes that are decoded. */
#define CH_CODEC_MEMORY ((size_t)16 << 20)

#endif
