# The headers of TorchComms below `root`, which is to be a checkout of torchcomms: sets `abi` and `release` to what they
# say ("" where a release is not said). Where they are not there, it says what was looked for. Also for cmake -P.
function(tutti_torchcomms_headers root abi release)
  set(header comms/torchcomms/TorchCommBackend.hpp)
  set(remedy
    "It must be the root of a checkout of torchcomms, at the commit that the installed torchcomms was built from: "
    "its wheel brings no headers.")
  if(NOT EXISTS ${root}/${header})
    message(FATAL_ERROR "TUTTI_TORCHCOMMS_INCLUDE is ${root}, where ${header} was looked for and not found. " ${remedy})
  endif()
  file(STRINGS ${root}/${header} line REGEX "TORCHCOMM_BACKEND_ABI_VERSION =")
  if(NOT line MATCHES "\"([^\"]*)\"")
    message(FATAL_ERROR "TUTTI_TORCHCOMMS_INCLUDE is ${root}, whose ${header} does not say "
      "TORCHCOMM_BACKEND_ABI_VERSION, which was looked for. " ${remedy})
  endif()
  set(${abi} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  set(found "")
  if(EXISTS ${root}/version.txt)
    file(STRINGS ${root}/version.txt found LIMIT_COUNT 1)
  endif()
  set(${release} "${found}" PARENT_SCOPE)
endfunction()
