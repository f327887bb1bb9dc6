// What ended a run: one record for both twins. Its layout is C, and mirrored in twin/__init__.py.
#pragma once
#include <stdint.h>

namespace twin {

struct Fault {
    char rule[32];      // a key of RULES in twin/__init__.py
    char api[48];       // the call that found it; empty for the SIMT twin
    char message[400];
    uint32_t line;      // of the text that was compiled
    uint32_t block[3];  // the vector twin has one number
    int32_t thread[3];  // -1 where blocks have no threads
};

}  // namespace twin
