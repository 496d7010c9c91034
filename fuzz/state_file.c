/* fuzz/state_file.c -- the parser of state files, with arbitrary text.
 *
 * The paths that the parser returns must stay inside the directory. If they are written to a
 * state file, the parser must return them again.
 *
 * covers: src/ckpt/state_file.c
 * longest: 300
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/state_file.h"

#include <unistd.h>

#include "file/help.h"
#include "tokens.h"

static void check_path(const char *path)
{
    MUST(path[0] != '/' && path[0] != '\0');
    MUST(strcmp(path, "..") != 0 && strncmp(path, "../", 3) != 0 &&
         strstr(path, "/../") == NULL);
    MUST(strlen(path) < 3 || strcmp(path + strlen(path) - 3, "/..") != 0);
}

static char folder[128];

static void remove_state(void)
{
    char path[160];

    snprintf(path, sizeof(path), "%s/checkpoint", folder);
    (void)remove(path);
    (void)remove(folder);
}

static void write_and_read(const ch_state_file *s)
{
    ch_state_file back;

    if (folder[0] == '\0') {
        snprintf(folder, sizeof(folder), "/dev/shm/cohort-fuzz-XXXXXX");
        MUST(mkdtemp(folder) != NULL);
        atexit(remove_state);
    }
    if (ch__state_file_write(folder, s, true) != CH_OK)
        return; /* a checkpoint cannot be called "checkpoint" */
    MUST(ch__state_file_read(folder, &back) == CH_OK);
    MUST(back.n == s->n && strcmp(back.latest, s->latest) == 0);
    for (int i = 0; i < s->n; i++)
        MUST(strcmp(back.path[i], s->path[i]) == 0);
    ch__free(back.memory);
}

static void parse_once(const char *text)
{
    ch_state_file s, back;

    if (ch__state_file_parse("/dir", text, strlen(text), &s) != CH_OK)
        return;
    if (folder[0] != '\0' && ch__state_file_write(folder, &s, true) == CH_OK &&
        ch__state_file_read(folder, &back) == CH_OK)
        ch__free(back.memory);
    ch__free(s.memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t       live = ch__mem_live();
    unsigned      h = fuzz_hash(data, size);
    char         *text = fuzz_alone(data, size);
    ch_state_file s;

    if (ch__state_file_parse("/dir", text, size, &s) == CH_OK) {
        check_path(s.latest);
        for (int i = 0; i < s.n; i++)
            check_path(s.path[i]);
        if (h % 4 == 0)
            write_and_read(&s);
        ch__free(s.memory);
        if (h % 16 == 1)
            with_failures(h / 16, parse_once, "model_checkpoint_path: \"a\"");
    }
    free(text);
    MUST(ch__mem_live() == live);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static const char *const token[] = {"model_checkpoint_path: \"a\"\n",
                                        "all_model_checkpoint_paths: \"b\"\n",
                                        "all_model_checkpoint_timestamps: 1.5\n",
                                        "last_preserved_timestamp: 3\n",
                                        "\"",
                                        "'",
                                        "\\",
                                        "\\x4",
                                        "\\101",
                                        "\\n",
                                        "../",
                                        "/..",
                                        "/dir/",
                                        "1e5",
                                        "-.5e-3",
                                        "99999999999999999999999",
                                        "# x\n",
                                        ";",
                                        NULL};
    dice                     d = {seed};
    size_t                   n = fuzz_mutate_text(&d, data, size, max_size, 0, token);

    return n > 0 ? n : LLVMFuzzerMutate(data, size, max_size);
}
