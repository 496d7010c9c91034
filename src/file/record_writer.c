/* file/record_writer.c -- TFRecord files, written (TR-1).   SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mem.h"
#include "file/bytes.h"
#include "file/crc32c.h"
#include "file/writer.h"

struct ch_record_writer {
    ch_writer *w;
};

ch_status ch_record_writer_open(const char *path, const ch_save_options *opt,
                                ch_record_writer **out)
{
    ch_record_writer *x;
    ch_status         rc = ch__want_given("TFRecord file", "path", path, "out", out);

    if (rc != CH_OK)
        return rc;
    x = ch__calloc(1, sizeof(*x));
    if (x == NULL)
        return ch__fail_memory("TFRecord file");
    rc = ch__writer_open(path, opt, &x->w);
    if (rc != CH_OK) {
        ch__free(x);
        return rc;
    }
    *out = x;
    return CH_OK;
}

ch_status ch_record_writer_add(ch_record_writer *x, ch_str record)
{
    unsigned char head[12], foot[4];
    ch_status     rc = ch__want_given("TFRecord file", "the writer", x, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    if (record.data == NULL && record.size > 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: a record of %zu bytes at NULL",
                        ch__writer_path(x->w), record.size);
    ch__put_le(head, record.size, 8);
    ch__put_le(head + 8, ch__crc32c_mask(ch__crc32c(0, head, 8)), 4);
    ch__put_le(foot, ch__crc32c_mask(ch__crc32c(0, record.data, record.size)), 4);
    rc = ch__writer_put(x->w, head, sizeof(head));
    if (rc == CH_OK)
        rc = ch__writer_put(x->w, record.data, record.size);
    return rc == CH_OK ? ch__writer_put(x->w, foot, sizeof(foot)) : rc;
}

ch_status ch_record_writer_add_example(ch_record_writer *x, ch_example *e)
{
    ch_str    bytes;
    ch_status rc = ch__want_given("TFRecord file", "the writer", x, "the example", e);

    if (rc == CH_OK)
        rc = ch_example_encode(e, &bytes);
    return rc == CH_OK ? ch_record_writer_add(x, bytes) : rc;
}

ch_status ch_record_writer_close(ch_record_writer *x)
{
    ch_status rc = ch__want_given("TFRecord file", "the writer", x, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    rc = ch__writer_commit(x->w);
    ch__free(x);
    return rc;
}

void ch_record_writer_drop(ch_record_writer *x)
{
    if (x == NULL)
        return;
    ch__writer_drop(x->w);
    ch__free(x);
}
