# The least rights that a program needs, for the namespace `lockkeeper`: everything below it, and nothing else. Run as
# root of the server's users.
etcdctl role add lockkeeper
etcdctl role grant-permission --prefix=true lockkeeper readwrite lockkeeper/
etcdctl user add lockkeeper:CHANGE-ME
etcdctl user grant-role lockkeeper lockkeeper
