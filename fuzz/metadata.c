/* fuzz/metadata.c -- decodes arbitrary bytes as the metadata of a checkpoint.
 *
 * Metadata that is decoded must be encoded to a message that decodes to the same metadata, and
 * its base must be a name in the same directory.
 *
 * covers: src/ckpt/metadata.c
 * longest: 200
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/metadata.h"

#include "file/help.h"

/* Returns the message in the bytes of a string without axes. */
static ch_str message_in(const ch_bytes_builder *item)
{
    size_t head = 1;

    while ((unsigned char)item->at[head - 1] >= 0x80)
        head++;
    return (ch_str){item->at + head + 4, item->n - head - 4};
}

static void decode_once(const char *text)
{
    ch_ckpt_metadata m;
    ch_bytes_builder item = {0};
    uint32_t         crc;

    if (ch__ckpt_metadata_decode((ch_str){text, 11}, &m) != CH_OK)
        return;
    (void)!ch__ckpt_metadata_encode(&m, &item, &crc);
    ch__bytes_builder_drop(&item);
    ch__free(m.memory);
}

static void check(const ch_ckpt_metadata *m)
{
    ch_bytes_builder item = {0};
    ch_ckpt_metadata again;
    uint32_t         crc;

    MUST(m->id != 0 && m->base_id != m->id && (m->base == NULL) == (m->base_id == 0));
    MUST(m->base == NULL || (strchr(m->base, '/') == NULL && m->base[0] != '.'));
    MUST(ch__ckpt_metadata_encode(m, &item, &crc) == CH_OK);
    MUST(ch__ckpt_metadata_decode(message_in(&item), &again) == CH_OK);
    MUST(again.format == m->format && again.id == m->id && again.time == m->time);
    MUST(again.step == m->step && again.n_files == m->n_files);
    MUST(again.base_id == m->base_id);
    for (int i = 0; i < m->n_files; i++)
        MUST(again.file_bytes[i] == m->file_bytes[i] && m->file_bytes[i] >= 0);
    MUST(m->base == NULL || strcmp(m->base, again.base) == 0);
    ch__free(again.memory);
    ch__bytes_builder_drop(&item);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t          live = ch__mem_live();
    char            *alone = fuzz_alone(data, size);
    ch_ckpt_metadata m = {.step = 1};

    if (fuzz_hash(data, size) % 16 == 0) {
        with_failures(fuzz_hash(data, size) / 16, decode_once,
                      "\x08\x01\x11\x01\0\0\0\0\0\0\0");
        MUST(ch__ckpt_metadata_init(&m) == CH_OK && m.id != 0);
    }
    if (ch__ckpt_metadata_decode((ch_str){alone, size}, &m) == CH_OK) {
        check(&m);
        ch__free(m.memory);
    }
    free(alone);
    MUST(ch__mem_live() == live);
    return 0;
}
