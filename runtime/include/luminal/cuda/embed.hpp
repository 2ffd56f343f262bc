// Puts a file into the library, as bytes.
#pragma once

/// Defines `const unsigned char SYMBOL[]` with the content of FILE, a path that the assembler finds.
#define LM_EMBED(SYMBOL, FILE)                  \
    __asm__(".pushsection .rodata, \"a\"\n"     \
            ".balign 64\n"                      \
            ".globl " #SYMBOL "\n"              \
            ".hidden " #SYMBOL "\n"             \
            #SYMBOL ":\n"                       \
            ".incbin \"" FILE "\"\n"            \
            ".popsection\n")
