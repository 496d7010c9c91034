/* app/cli/text.c -- prints texts, sizes and times, for people and as JSON.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <math.h>
#include <time.h>

void cli_print(FILE *to, const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 32 || *text == 127)
            fprintf(to, "\\x%02x", (unsigned char)*text);
        else
            fputc(*text, to);
}

/* Returns the bytes of the UTF-8 character at s; 0 if it is invalid. */
static int utf8_bytes(const char *s)
{
    unsigned char c = (unsigned char)*s;
    int n = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;

    for (int i = 1; i < n; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

void cli_print_json(FILE *to, const char *text)
{
    fputc('"', to);
    while (*text != '\0') {
        int n = utf8_bytes(text);

        if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else if ((unsigned char)*text < 32 || *text == 127)
            fprintf(to, "\\u%04x", (unsigned char)*text);
        else
            fprintf(to, "%.*s", n > 0 ? n : 1, n > 0 ? text : "?");
        text += n > 0 ? n : 1;
    }
    fputc('"', to);
}

void cli_print_json_number(FILE *to, double x)
{
    if (isfinite(x))
        fprintf(to, "%.17g", x);
    else
        fputs("null", to);
}

cli_text cli_bytes(int64_t bytes)
{
    static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double                   x = (double)bytes / 1024;
    cli_text                 t;
    int                      i = 0;

    for (; x >= 1024 && i < 5; i++)
        x /= 1024;
    if (bytes < 1024)
        snprintf(t.at, sizeof(t.at), "%lld B", (long long)bytes);
    else
        snprintf(t.at, sizeof(t.at), "%.1f %s", x, unit[i]);
    return t;
}

cli_text cli_time(double seconds)
{
    time_t    whole = (time_t)seconds;
    struct tm parts;
    cli_text  t = {"-"};

    if (seconds != 0 && localtime_r(&whole, &parts) != NULL)
        strftime(t.at, sizeof(t.at), "%Y-%m-%d %H:%M:%S", &parts);
    return t;
}

cli_text cli_step(int64_t step)
{
    cli_text t = {"-"};

    if (step >= 0)
        snprintf(t.at, sizeof(t.at), "%lld", (long long)step);
    return t;
}
