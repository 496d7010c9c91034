/* app/cli/main.c -- the program `cohort`: chooses the command.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "command.h"

static const char usage[] = "usage: cohort COMMAND [ARGUMENT...]\n"
                            "\n"
                            "  ckpt    list, show, verify, compare and fold checkpoints\n"
                            "  help    this text\n"
                            "\n"
                            "`cohort COMMAND --help` describes a command.\n";

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    int         code = CLI_USAGE;

    if (strcmp(name, "ckpt") == 0) {
        code = cli_ckpt(argc - 1, argv + 1);
    } else if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 ||
               strcmp(name, "-h") == 0) {
        fputs(usage, stdout);
        code = CLI_OK;
    } else {
        if (name[0] != '\0')
            fprintf(stderr, "cohort: no command \"%s\"\n", name);
        fputs(usage, stderr);
    }
    if (fflush(stdout) != 0 && code == CLI_OK) {
        perror("cohort: standard output");
        code = CLI_BAD;
    }
    return code;
}
