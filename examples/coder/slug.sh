# Makes a name for an address of a title: slug.sh "Hello, World" prints hello-world.
slug() {
    printf '%s' "$1" |
        tr '[:upper:]' '[:lower:]' |
        sed 's/[^a-z0-9]/-/g'
}

slug "$1"
