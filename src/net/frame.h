/* net/frame.h -- frames as bytes, and back.
 *
 *     ch_frame_reader r = {.most = 64 << 20};
 *     while ((n = read(fd, chunk, sizeof(chunk))) > 0)
 *         for (size_t at = 0, used; at < n; at += used) {
 *             if (ch__frame_read(&r, chunk + at, n - at, &used, &is_whole) != CH_OK)
 *                 ... close the connection ...
 *             if (is_whole)
 *                 ... r.frame is the caller's now ...
 *         }
 *     ch__frame_reader_drop(&r);
 *
 * A frame is four bytes ("CH", the length of the header as two), a header of at most 1 KiB (cohort.FrameHeader of
 * proto/net.proto), what the tensors look like (cohort.FrameTensors), the message (of a refusal a
 * cohort.FrameFault), and the tensors' elements, one after the other. doc/transport.md says more.
 *
 * A reader trusts nobody: sizes are checked before they are added or multiplied, and it never holds more than what has come
 * and 16 MiB.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_FRAME_H
#define NET_FRAME_H

#include "net/wire.h"

enum {
    CH_FRAME_VERSION = 1,
    CH_FRAME_PREFIX = 4,
    CH_FRAME_HEADER = 1024,
    CH_FRAME_TENSORS = 8192
};

/* The frame as one block, freed with ch__free. INVALID_ARGUMENT for what no frame can hold. */
CH_MUST_CHECK ch_status ch__frame_encode(const ch_frame *f, void **bytes, size_t *size);

typedef enum ch_frame_part {
    CH_READ_PREFIX,
    CH_READ_HEADER,
    CH_READ_BODY, /* looks of tensors, and the message */
    CH_READ_TENSOR
} ch_frame_part;

/* Zero but for `most`, to begin; what is below is its own. */
typedef struct ch_frame_reader {
    int64_t                  most; /* bytes of a frame behind its header */
    ch_frame                 frame;
    ch_frame_part            part;
    uint8_t                  head[CH_FRAME_HEADER];
    size_t                   n_head; /* of what `head` will hold: the prefix first */
    uint64_t                 looks_bytes, message_bytes, tensors_bytes;
    uint32_t                 method;
    int                      n_tensors, n_done;
    size_t                   header_bytes;
    uint8_t                 *body, *data;
    size_t                   n_body, cap_body, n_data, cap_data;
    struct ch_tensor_header *look;
    ch_tensor              **tensor;
} ch_frame_reader;

/* Takes up to n bytes, no further than the end of a frame. DATA_LOSS: this is no frame, and what follows cannot be one;
 * RESOURCE_EXHAUSTED: no memory, or more than `most`. Neither can be gone on with. */
CH_MUST_CHECK ch_status ch__frame_read(ch_frame_reader *r, const void *bytes, size_t n,
                                       size_t *used, bool *is_whole);
void                    ch__frame_reader_drop(ch_frame_reader *r);

#endif
