# cmake -D FILES=a;b -D SALT=text -D OUTPUT=file.cc -D FUNCTION=ns::name -P HashSources.cmake
#
# Writes a source file that defines FUNCTION to return the SHA-256 of the files and the salt. The output is touched only
# when the hash has changed.
set(all "${SALT}")
foreach(file ${FILES})
  file(SHA256 ${file} hash)
  string(APPEND all " ${hash}")
endforeach()
string(SHA256 hash "${all}")
string(REGEX REPLACE "::[^:]*$" "" namespace "${FUNCTION}")
string(REGEX REPLACE "^.*::" "" name "${FUNCTION}")
set(text "#include <string_view>\n\nnamespace ${namespace} {\nstd::string_view ${name}() noexcept { return \"${hash}\"; }\n}\n")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT "${before}" STREQUAL "${text}")
  file(WRITE ${OUTPUT} "${text}")
else()
  file(TOUCH_NOCREATE ${OUTPUT})
endif()
