/* net/hello.h -- the first frame of a connection, in both directions.
 *
 * A hello says which release the sender is, which task of which job, and how much it accepts.
 * It has the same format in all versions of frames, so that two releases that cannot talk to
 * each other can say so.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_HELLO_H
#define NET_HELLO_H

#include "net/net.h"

enum { CH_HELLO_BYTES = 1024 }; /* the largest hello, packed */

typedef struct ch_hello {
    uint32_t least_version, most_version; /* of frames that the sender reads */
    char     release[32];                 /* "0.3.0" */
    char     job[64];                     /* id of the job; "": of none yet */
    char     sender[64], receiver[64];    /* names of tasks; receiver "": any */
    char     role[32];                    /* of the sender: "worker" */
    uint64_t incarnation;                 /* of the sender */
    int      calls;                       /* room of the link to the sender */
    int64_t  bytes;
    int64_t  max_frame; /* largest frame that the sender accepts, in bytes */
    char     host[128]; /* boot id and network namespace of the sender */
    uint64_t features;  /* bits that the sender understands */
} ch_hello;

/* Packs a hello as the message of a CH_FRAME_HELLO. */
CH_MUST_CHECK ch_status ch__hello_encode(const ch_hello *h, ch_message **out);
/* Reads the message of a CH_FRAME_HELLO, which is untrusted. Skips unknown fields. Returns
 * DATA_LOSS if it is damaged, if a text is too long or has control characters, or if a number
 * is too large. */
CH_MUST_CHECK ch_status ch__hello_decode(const ch_message *m, ch_hello *out);

#endif
