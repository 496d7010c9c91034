#!/usr/bin/env python3
"""csv_texts.py -- random CSV texts and their fields as read by Python's csv module, as a C table.

    python3 test/golden/csv_texts.py > test/golden/csv_texts.inc

A row is {text, bytes, fields, whether reading ended in an error}: fields are separated by
\\037, records end with \\036. The reader is strict: text behind a closing quote, and quotes that
do not close, are errors. Empty lines are not records.

SPDX-License-Identifier: Apache-2.0
"""
import csv
import io
import random

N_TEXTS = 400
PIECES = ['a', 'b', '1', ' ', ',', ',', '"', '"', '""', '",', ',"', '\n', '\r\n', '\n\n', '"\n']


def read(text):
    records = []
    try:
        for record in csv.reader(io.StringIO(text, newline=''), strict=True):
            if record:
                records.append(record)
    except csv.Error:
        return records, 1
    return records, 0


def quoted(text):
    return '"' + ''.join(f'\\{ord(c):03o}' if c in '\\"' or not ' ' <= c <= '~' else c
                         for c in text) + '"'


def main():
    random.seed(4)
    print('/* Made by csv_texts.py. SPDX-License-Identifier: Apache-2.0 */')
    for _ in range(N_TEXTS):
        text = ''.join(random.choice(PIECES) for _ in range(random.randrange(1, 20)))
        records, is_error = read(text)
        joined = ''.join('\x1f'.join(record) + '\x1e' for record in records)
        print(f'{{{quoted(text)}, {len(text)}, {quoted(joined)}, {is_error}}},')


if __name__ == '__main__':
    main()
