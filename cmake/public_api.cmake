# libkt, the shared library of the public API, and what `cmake --install` puts where.
# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)

# Headers of the public API; the kernels' contract (variant.h, problem.h, isa.h) is for the tree alone.
file(GLOB KT_PUBLIC_HEADERS CONFIGURE_DEPENDS include/kt/*.h)
list(FILTER KT_PUBLIC_HEADERS EXCLUDE REGEX "/(variant|problem|isa)[.]h$")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${KT_PUBLIC_HEADERS})

# Every function that they declare, each on a line that begins with its type, is exported and nothing else.
set(KT_EXPORTED)
foreach(header IN LISTS KT_PUBLIC_HEADERS)
  file(STRINGS ${header} lines REGEX "^[A-Za-z].*[ *]kt_[a-z0-9_]+[(]")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^[^(]*[ *](kt_[a-z0-9_]+)[(].*" "\\1" name "${line}")
    list(APPEND KT_EXPORTED ${name})
  endforeach()
endforeach()
file(STRINGS include/kt/version.h line REGEX "define KT_ABI_VERSION")
string(REGEX REPLACE ".* ([0-9]+)$" "\\1" KT_ABI_VERSION "${line}")
list(JOIN KT_EXPORTED ";\n        " names)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/libkt.map @ONLY CONTENT
     "KT_${KT_ABI_VERSION} {\n    global:\n        ${names};\n    local: *;\n};\n")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/libkt.c @ONLY CONTENT
     "/* Everything of the library comes out of the static ones. */\n#include \"kt/kt.h\"\n")

# The objects are those of the programs, compiled once: code of position-independent executables takes its
# names for its own. Here they are: the script makes all but the API's local, -Bsymbolic binds those too,
# and the linker refuses every reference that would not hold. What the API does not need (the server) stays out.
add_library(kt_shared SHARED ${CMAKE_BINARY_DIR}/generated/libkt.c)
set_target_properties(kt_shared PROPERTIES OUTPUT_NAME kt VERSION ${PROJECT_VERSION}
                      SOVERSION ${KT_ABI_VERSION} POSITION_INDEPENDENT_CODE ON
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib
                      LINK_DEPENDS ${CMAKE_BINARY_DIR}/generated/libkt.map)
list(TRANSFORM KT_EXPORTED PREPEND "-Wl,-u," OUTPUT_VARIABLE wanted)
target_link_options(kt_shared PRIVATE ${wanted} -Wl,-Bsymbolic -Wl,-z,defs -Wl,--as-needed
                    -Wl,--version-script=${CMAKE_BINARY_DIR}/generated/libkt.map)
target_link_libraries(kt_shared PRIVATE kt_runtime)

# prefix is found from where the file lies, so that the installed tree can be moved.
file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/kt.pc @ONLY CONTENT
     "prefix=\${pcfiledir}/${up}
libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}
includedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}

Name: kt
Description: mixture-of-experts inference, tuned by measurement
Version: ${PROJECT_VERSION}
Libs: -L\${libdir} -lkt
Cflags: -I\${includedir}
")
install(TARGETS kt kttune RUNTIME)
install(TARGETS kt_shared LIBRARY)
install(FILES ${KT_PUBLIC_HEADERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kt)
install(FILES ${CMAKE_BINARY_DIR}/generated/kt.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# build/<preset>/wheel/kt-*.whl: the Python package with the library inside.
add_custom_target(wheel COMMAND python3 ${CMAKE_SOURCE_DIR}/python/build_wheel.py --out ${CMAKE_BINARY_DIR}/wheel
                  --library $<TARGET_FILE:kt_shared> DEPENDS kt_shared VERBATIM)
