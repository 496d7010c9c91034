/* net/frame.h -- encodes frames as bytes, and decodes them.
 *
 * Sending, from the memory of the tensors:
 *
 *     ch__frame_vec_new(&frame, has_checksums, &v);
 *     while (v->sent < v->size) {
 *         n_parts = ch__frame_vec_next(v, 256 << 10, part, MOST_PARTS);
 *         n = writev(fd, part, n_parts);
 *         ch__frame_vec_sent(v, n);
 *     }
 *     ch__frame_vec_free(v);
 *
 * Receiving, into the memory in which the tensors stay:
 *
 *     ch_frame_reader r = {.max_bytes = 64 << 20, .has_checksums = true, .pool = pool};
 *     for (;;) {
 *         ch__frame_next(&r, &at, &n);
 *         n = read(fd, at, n);
 *         if (ch__frame_got(&r, n, &is_whole) != CH_OK)
 *             ... close the connection ...
 *         if (is_whole)
 *             ... the caller owns r.frame now ...
 *     }
 *     ch__frame_reader_drop(&r);
 *
 * A frame consists of a prefix of four bytes ("CH" and the length of the header), a header of
 * at most 1 KiB (cohort.FrameHeader of proto/net.proto), the tensor headers
 * (cohort.FrameTensors), the message (in an error reply or a refusal a cohort.FrameFault, in a
 * hello a cohort.FrameHello), and the elements of the tensors. With checksums, which are a
 * property of the connection, a CRC-32C follows the header, and the CRC-32Cs of all later
 * bytes, in pieces of 64 KiB, end the frame. doc/transport.md describes the parts.
 *
 * The reader decodes untrusted bytes. It checks every size before it adds or multiplies the
 * size, and never allocates more than the bytes received so far and 16 MiB; kept blocks of the
 * pool do not count.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_FRAME_H
#define NET_FRAME_H

#include <sys/uio.h>

#include "net/receive_pool.h"
#include "net/wire.h"

enum {
    CH_FRAME_VERSION = 2,
    CH_FRAME_PREFIX = 4,       /* bytes of the prefix */
    CH_FRAME_HEADER = 1024,    /* the largest header, in bytes */
    CH_FRAME_TENSORS = 8192,   /* the largest number of tensors */
    CH_FRAME_PIECE = 64 << 10, /* bytes that a checksum covers */
    CH_FRAME_CHECKSUM = 4      /* bytes of a checksum */
};

/* ---- encoding ---- */

/* The checksums of a sequence of bytes, in pieces of CH_FRAME_PIECE. */
typedef struct ch_frame_sums {
    uint8_t *sum;    /* of each whole piece, little-endian */
    size_t   n, cap; /* bytes */
    uint32_t crc;    /* of the last piece, as far as it is known */
    size_t   n_last; /* bytes in it */
} ch_frame_sums;

/* An encoded frame: parts that refer to the tensors of the frame, and references to these. */
typedef struct ch_frame_vec {
    size_t size, sent; /* bytes in all; sent so far */
    /* Private. */
    struct iovec *part;                      /* head block, tensors, checksums */
    int           n_parts, n_tensors, first; /* first: part of the next byte to be sent */
    size_t        first_at;                  /* place of that byte in its part */
    size_t        header, summed; /* bytes before the checked ones; checked bytes so far */
    bool          has_checksums;
    ch_frame_sums sums;
    ch_tensor    *tensor[];
} ch_frame_vec;

/* Encodes a frame. Refers to its tensors, and copies the rest. Returns INVALID_ARGUMENT if the
 * frame has too many tensors. The caller must free *out with ch__frame_vec_free. */
CH_MUST_CHECK ch_status ch__frame_vec_new(const ch_frame *f, bool has_checksums,
                                          ch_frame_vec **out);
/* Stores the next bytes to be sent, at most max_bytes and at least one, in part[], and returns
 * the number of parts. */
int  ch__frame_vec_next(ch_frame_vec *v, size_t max_bytes, struct iovec *part, int max_parts);
void ch__frame_vec_sent(ch_frame_vec *v, size_t n);
void ch__frame_vec_free(ch_frame_vec *v); /* NULL is allowed */
/* Encodes a frame as one block, which the caller must free with ch__free. */
CH_MUST_CHECK ch_status ch__frame_encode(const ch_frame *f, bool has_checksums, void **bytes,
                                         size_t *size);

/* Adds bytes. `sum` must have room for the checksums of all pieces that become whole. */
void ch__frame_sums_add(ch_frame_sums *s, const void *bytes, size_t n);
/* Ends the last piece, if there is one. */
void ch__frame_sums_end(ch_frame_sums *s);
/* Returns the size of the checksums of n bytes. */
size_t ch__frame_sums_bytes(uint64_t n);

/* ---- decoding ---- */

/* The part that the reader expects next. */
typedef enum ch_frame_part {
    CH_READ_PREFIX,
    CH_READ_HEADER, /* with its checksum */
    CH_READ_BODY,   /* tensor headers and message */
    CH_READ_TENSOR, /* the elements of a tensor */
    CH_READ_SUMS    /* the checksums of the pieces */
} ch_frame_part;

/* To begin, set `max_bytes`, `has_checksums` and `pool`, and zero-initialise the rest. All
 * fields after `frame` are private. */
typedef struct ch_frame_reader {
    int64_t max_bytes; /* largest size of a frame without prefix and header, in bytes */
    bool    has_checksums;
    ch_receive_pool *pool;  /* borrowed; of memory for tensors; NULL: none */
    ch_frame         frame; /* valid when *is_whole was set */
    ch_frame_part    part;
    uint8_t          head[CH_FRAME_HEADER + CH_FRAME_CHECKSUM];
    size_t   n_head;   /* bytes in `head`, which holds the prefix first, then the header */
    uint32_t head_crc; /* of the prefix */
    /* Sizes in bytes, from the header: tensor headers, message, elements of all tensors. */
    uint64_t                 tensor_headers_bytes, message_bytes, tensors_bytes;
    uint32_t                 method;
    int                      n_tensors, n_done; /* in the frame; completely read */
    size_t                   header_bytes;
    uint8_t                 *body, *data; /* bytes of CH_READ_BODY; elements of a tensor */
    size_t                   n_body, cap_body, n_data, cap_data;
    struct ch_tensor_header *tensor_header;
    ch_tensor              **tensor;
    ch_frame_sums            sums; /* computed */
    uint8_t                 *sent; /* the checksums of the frame */
    size_t                   n_sent;
} ch_frame_reader;

/* Sets *at to the place of the next bytes of the frame, and *n to the number of bytes, at least
 * one, that may be written there. Returns RESOURCE_EXHAUSTED if memory is exhausted. */
CH_MUST_CHECK ch_status ch__frame_next(ch_frame_reader *r, void **at, size_t *n);
/* Decodes n bytes that were written to that place. Sets *is_whole if r->frame is complete.
 *
 * Returns DATA_LOSS if the bytes are no valid frame, and RESOURCE_EXHAUSTED if memory is
 * exhausted or the frame is larger than `max_bytes`. After an error of this function or of
 * ch__frame_next the caller must close the connection, because the reader cannot find the
 * beginning of the next frame. */
CH_MUST_CHECK ch_status ch__frame_got(ch_frame_reader *r, size_t n, bool *is_whole);
/* Decodes up to n bytes that are elsewhere, and stops at the end of a frame. Sets *used to the
 * number of bytes decoded. Copies the bytes. */
CH_MUST_CHECK ch_status ch__frame_read(ch_frame_reader *r, const void *bytes, size_t n,
                                       size_t *used, bool *is_whole);
/* Frees everything that the reader holds, r->frame included. */
void ch__frame_reader_drop(ch_frame_reader *r);

#endif
