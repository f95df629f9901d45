# The build's tables: one descriptor per file, listed by file name.
# SPDX-License-Identifier: Apache-2.0

# kt_write_table(OUT <file.c> HEADER <h> TYPE <type> PREFIX <symbol prefix> ARRAY <array> COUNT <count>
#                STEMS <stem>...): write extern declarations and the array, only when changed.
function(kt_write_table)
  cmake_parse_arguments(T "" "OUT;HEADER;TYPE;PREFIX;ARRAY;COUNT" "STEMS" ${ARGN})
  list(SORT T_STEMS)
  list(LENGTH T_STEMS n)
  set(text "/* Written by the build from file names. */\n#include \"${T_HEADER}\"\n\n")
  foreach(stem IN LISTS T_STEMS)
    string(APPEND text "extern const ${T_TYPE} ${T_PREFIX}${stem};\n")
  endforeach()
  string(APPEND text "\nconst ${T_TYPE} *const ${T_ARRAY}[] = {\n")
  foreach(stem IN LISTS T_STEMS)
    string(APPEND text "    &${T_PREFIX}${stem},\n")
  endforeach()
  string(APPEND text "    0};\nconst size_t ${T_COUNT} = ${n};\n")
  file(CONFIGURE OUTPUT "${T_OUT}" CONTENT "${text}" @ONLY)
endfunction()

# Stems (file names without extension) of a list of files.
function(kt_stems out)
  set(stems)
  foreach(file IN LISTS ARGN)
    get_filename_component(stem "${file}" NAME_WE)
    list(APPEND stems ${stem})
  endforeach()
  set(${out} ${stems} PARENT_SCOPE)
endfunction()
