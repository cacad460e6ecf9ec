# ripplekv_batches(target [files]): compiles several of a target's files as one. For many small files that parse the same large
# headers; what they declare in unnamed namespaces must not clash.
function(ripplekv_batches target)
  set(files 6)
  if(ARGC GREATER 1)
    set(files ${ARGV1})
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE BATCH UNITY_BUILD_BATCH_SIZE ${files})
endfunction()
