/* net/frame.h -- encodes frames as bytes, and decodes them.
 *
 *     ch_frame_reader r = {.most = 64 << 20};
 *     while ((n = read(fd, chunk, sizeof(chunk))) > 0)
 *         for (size_t at = 0, used; at < n; at += used) {
 *             if (ch__frame_read(&r, chunk + at, n - at, &used, &is_whole) != CH_OK)
 *                 ... close the connection ...
 *             if (is_whole)
 *                 ... the caller owns r.frame now ...
 *         }
 *     ch__frame_reader_drop(&r);
 *
 * A frame consists of five parts: a prefix of four bytes ("CH" and the length of the header), a
 * header of at most 1 KiB (cohort.FrameHeader of proto/net.proto), the tensor headers
 * (cohort.FrameTensors), the message (in an error reply a cohort.FrameFault), and the elements
 * of the tensors. doc/transport.md describes them.
 *
 * The reader decodes untrusted bytes. It checks every size before it adds or multiplies the
 * size, and never allocates more than the bytes received so far and 16 MiB.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_FRAME_H
#define NET_FRAME_H

#include "net/wire.h"

enum {
    CH_FRAME_VERSION = 1,
    CH_FRAME_PREFIX = 4,    /* bytes of the prefix */
    CH_FRAME_HEADER = 1024, /* the largest header, in bytes */
    CH_FRAME_TENSORS = 8192 /* the largest number of tensors */
};

/* Encodes a frame as one block, which the caller must free with ch__free. Returns
 * INVALID_ARGUMENT if the frame has too many tensors. */
CH_MUST_CHECK ch_status ch__frame_encode(const ch_frame *f, void **bytes, size_t *size);

/* The part that the reader expects next. */
typedef enum ch_frame_part {
    CH_READ_PREFIX,
    CH_READ_HEADER,
    CH_READ_BODY,  /* tensor headers and message */
    CH_READ_TENSOR /* the elements of a tensor */
} ch_frame_part;

/* To begin, set `max_bytes` and zero-initialise the rest. All fields after `frame` are
 * private. */
typedef struct ch_frame_reader {
    int64_t       max_bytes; /* largest size of a frame without prefix and header, in bytes */
    ch_frame      frame;     /* valid when ch__frame_read has set *is_whole */
    ch_frame_part part;
    uint8_t       head[CH_FRAME_HEADER];
    size_t        n_head; /* bytes in `head`, which holds the prefix first, then the header */
    /* Sizes in bytes, from the header: tensor headers, message, elements of all tensors. */
    uint64_t                 tensor_headers_bytes, message_bytes, tensors_bytes;
    uint32_t                 method;
    int                      n_tensors, n_done; /* in the frame; completely read */
    size_t                   header_bytes;
    uint8_t                 *body, *data; /* bytes of CH_READ_BODY; elements of a tensor */
    size_t                   n_body, cap_body, n_data, cap_data;
    struct ch_tensor_header *tensor_header;
    ch_tensor              **tensor;
} ch_frame_reader;

/* Decodes up to n bytes, and stops at the end of a frame. Sets *used to the number of bytes
 * decoded, and *is_whole if r->frame is complete.
 *
 * Returns DATA_LOSS if the bytes are no valid frame, and RESOURCE_EXHAUSTED if memory is
 * exhausted or the frame is larger than `max_bytes`. After an error the caller must close the
 * connection, because the reader cannot find the beginning of the next frame. */
CH_MUST_CHECK ch_status ch__frame_read(ch_frame_reader *r, const void *bytes, size_t n,
                                       size_t *used, bool *is_whole);
/* Frees everything that the reader holds, r->frame included. */
void ch__frame_reader_drop(ch_frame_reader *r);

#endif
