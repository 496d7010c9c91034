/* graph/codec.h -- limits that the encoder and the decoder of graphs share.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_CODEC_H
#define GRAPH_CODEC_H

/* Version of the message. doc/graph-format.md says when it changes. */
#define CH_CODEC_FORMAT 1

/* Limits of a graph. The encoder and the decoder reject larger graphs. */
#define CH_CODEC_MAX_DEPTH   64        /* nesting of bodies */
#define CH_CODEC_MAX_CALLS   (1 << 20) /* including calls in bodies */
#define CH_CODEC_MAX_INPUTS  (1 << 14) /* of a call */
#define CH_CODEC_MAX_SYMBOLS (1 << 16)
#define CH_CODEC_MAX_NAME    4096 /* bytes of any name */

/* Limit of the memory for decoding, in bytes: this plus twice the size of the message. */
#define CH_CODEC_MEMORY ((size_t)16 << 20)

#endif
